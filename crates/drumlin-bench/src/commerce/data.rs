//! The initial data of a shop, generated from a seed.

use std::collections::BTreeSet;

use drumlin_testing::Random;
use serde::{Deserialize, Serialize};

use super::{Category, Customer, Order, Product, Review};
use crate::rows::SEED;

/// Initial orders have fewer products than this.
const ORDER_PRODUCTS_LIMIT: u64 = 20;
/// The percentage of reviews that have text.
const TEXT_PERCENT: u64 = 25;
/// The maximum number of paragraphs in the text of a review. The minimum is 1.
const PARAGRAPHS_MAX: u64 = 4;

/// The size of a shop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Size {
    /// 100 products.
    Small,
    /// 1,000 products.
    Medium,
    /// 5,000 products.
    Large,
}

/// The number of documents of each kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) customers: u32,
    pub(crate) products: u32,
    pub(crate) categories: u32,
    pub(crate) orders: u32,
    pub(crate) reviews: u32,
}

impl Size {
    pub const ALL: [Size; 3] = [Size::Small, Size::Medium, Size::Large];

    pub(crate) fn counts(self) -> Counts {
        let of = |customers, products, categories, orders, reviews| Counts {
            customers,
            products,
            categories,
            orders,
            reviews,
        };
        match self {
            Size::Small => of(100, 100, 10, 125, 50),
            Size::Medium => of(1000, 1000, 50, 1500, 500),
            Size::Large => of(5000, 5000, 100, 5000, 1000),
        }
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Counts { customers, products, categories, orders, reviews } = self.counts();
        write!(
            f,
            "{products} products in {categories} categories, {customers} customers, {orders} orders, {reviews} reviews"
        )
    }
}

/// The documents that a shop holds before the first shopper arrives. The keys of each kind are numbered from 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InitialData {
    /// The customers, in key order.
    pub customers: Vec<Customer>,
    /// The categories, in key order.
    pub categories: Vec<Category>,
    /// The products, in key order.
    pub products: Vec<Product>,
    /// The orders, in key order.
    pub orders: Vec<Order>,
    /// Reviews of ordered products, in no particular order.
    pub reviews: Vec<Review>,
}

impl InitialData {
    /// Generates the data of a shop of this size. It is the same on every call.
    #[must_use]
    pub fn new(size: Size) -> InitialData {
        let (counts, mut random) = (size.counts(), Random(SEED));
        let customers = (0..counts.customers).map(|id| customer(&mut random, id)).collect();
        let categories = (0..counts.categories).map(|id| category(&mut random, id)).collect();
        let products = (0..counts.products).map(|id| product(&mut random, id, counts)).collect();
        let orders: Vec<Order> = (0..counts.orders).map(|id| order(&mut random, id, counts)).collect();
        let reviews = reviews(&mut random, counts.reviews, &orders);
        InitialData { customers, categories, products, orders, reviews }
    }

    /// Returns the product with this key.
    ///
    /// # Panics
    /// If no product has this key.
    #[must_use]
    pub fn product(&self, id: u32) -> &Product {
        &self.products[id as usize]
    }
}

const GIVEN_NAMES: [&str; 16] = [
    "Ada", "Alan", "Barbara", "Dennis", "Edgar", "Edsger", "Frances", "Grace", "Jim", "John", "Karen", "Ken", "Leslie",
    "Margaret", "Michael", "Tony",
];
const FAMILY_NAMES: [&str; 16] = [
    "Archer", "Baker", "Carter", "Cooper", "Dyer", "Fisher", "Fletcher", "Gardener", "Mason", "Miller", "Potter",
    "Sawyer", "Smith", "Taylor", "Turner", "Weaver",
];
const STREETS: [&str; 8] = [
    "Bridge Street",
    "Church Lane",
    "Elm Avenue",
    "Harbour Road",
    "High Street",
    "Mill Lane",
    "Park Road",
    "Station Way",
];
const CITIES: [&str; 8] =
    ["Ashford", "Brookfield", "Clearwater", "Eastham", "Greenhill", "Kingsport", "Northfield", "Riverside"];
const REGIONS: [&str; 8] =
    ["Coast", "Downs", "East Plains", "Highlands", "Islands", "Lake District", "North Valley", "West Hills"];
const COUNTRIES: [&str; 8] = ["AT", "CA", "DE", "FR", "JP", "NZ", "SE", "US"];
const QUALITIES: [&str; 16] = [
    "bright",
    "compact",
    "durable",
    "elegant",
    "folding",
    "handmade",
    "light",
    "narrow",
    "patterned",
    "quiet",
    "round",
    "simple",
    "smooth",
    "sturdy",
    "warm",
    "wooden",
];
const THINGS: [&str; 16] = [
    "basket",
    "blanket",
    "bottle",
    "chair",
    "clock",
    "desk",
    "garden hose",
    "kettle",
    "lamp",
    "mirror",
    "notebook",
    "radio",
    "shelf",
    "tea cup",
    "toolbox",
    "umbrella",
];

fn one_of<'w>(random: &mut Random, words: &[&'w str]) -> &'w str {
    words[random.index(words.len())]
}

fn customer(random: &mut Random, id: u32) -> Customer {
    let (given, family) = (one_of(random, &GIVEN_NAMES), one_of(random, &FAMILY_NAMES));
    Customer {
        id,
        name: format!("{given} {family} {id}"),
        email: format!("{}.{}.{id}@example.org", given.to_lowercase(), family.to_lowercase()),
        address: format!("{} {}", 1 + random.below(200), one_of(random, &STREETS)),
        city: one_of(random, &CITIES).to_owned(),
        region: one_of(random, &REGIONS).to_owned(),
        country: one_of(random, &COUNTRIES).to_owned(),
        postal_code: format!("{:05}", random.below(100_000)),
        phone: format!("+{} {:07}", 1 + random.below(99), random.below(10_000_000)),
    }
}

fn category(random: &mut Random, id: u32) -> Category {
    Category { id, name: format!("{} things {id}", one_of(random, &QUALITIES)) }
}

/// Draws `count` distinct numbers below `limit`, which must be at least `count`.
fn distinct(random: &mut Random, count: u64, limit: u32) -> Vec<u32> {
    let mut drawn = Vec::new();
    while (drawn.len() as u64) < count {
        let number = random.below(u64::from(limit)) as u32;
        if !drawn.contains(&number) {
            drawn.push(number);
        }
    }
    drawn
}

/// Generates a product that belongs to fewer than half of the categories.
fn product(random: &mut Random, id: u32, counts: Counts) -> Product {
    let count = random.below(u64::from(counts.categories).div_ceil(2));
    let mut categories = distinct(random, count, counts.categories);
    categories.sort_unstable();
    Product { id, name: format!("{} {} {id}", one_of(random, &QUALITIES), one_of(random, &THINGS)), categories }
}

/// Generates an order of fewer than [`ORDER_PRODUCTS_LIMIT`] products, and fewer than a third of all products.
fn order(random: &mut Random, id: u32, counts: Counts) -> Order {
    let count = random.below(u64::from(counts.products).div_ceil(3).min(ORDER_PRODUCTS_LIMIT));
    let products = distinct(random, count, counts.products);
    Order { id: u64::from(id), customer: random.below(u64::from(counts.customers)) as u32, products }
}

/// Generates reviews of products by customers who have ordered them. The orders must contain enough products.
fn reviews(random: &mut Random, count: u32, orders: &[Order]) -> Vec<Review> {
    let mut left: Vec<(u32, u32)> = orders
        .iter()
        .flat_map(|order| order.products.iter().map(|product| (order.customer, *product)))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let mut reviews = Vec::new();
    for _ in 0..count {
        let (customer, product) = left.swap_remove(random.index(left.len()));
        let rating = 1 + random.below(5) as u8;
        let text = random.chance(TEXT_PERCENT).then(|| text(random));
        reviews.push(Review { customer, product, rating, text });
    }
    reviews
}

/// Generates 1 to 4 paragraphs of 3 to 6 sentences each.
fn text(random: &mut Random) -> String {
    let sentence = |random: &mut Random| {
        let (quality, thing) = (one_of(random, &QUALITIES), one_of(random, &THINGS));
        format!("The {thing} is {quality}, and as good as the one that we had for {} years. ", 1 + random.below(30))
    };
    let paragraphs = 1 + random.below(PARAGRAPHS_MAX);
    let paragraphs: Vec<String> =
        (0..paragraphs).map(|_| (0..3 + random.below(4)).map(|_| sentence(random)).collect()).collect();
    paragraphs.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data of each size is the same on every call. It has the right number of documents, its products have unique
    /// names, and their categories exist.
    #[test]
    fn data_are_the_same_and_hold_together() {
        for size in Size::ALL {
            let (data, counts) = (InitialData::new(size), size.counts());
            assert!(data == InitialData::new(size));
            let found = [data.customers.len(), data.products.len(), data.categories.len(), data.orders.len()];
            let wanted = [counts.customers, counts.products, counts.categories, counts.orders];
            assert_eq!(found, wanted.map(|count| count as usize));
            let names: BTreeSet<&str> = data.products.iter().map(|product| product.name.as_str()).collect();
            assert_eq!(names.len(), data.products.len());
            let reviewed: BTreeSet<(u32, u32)> =
                data.reviews.iter().map(|review| (review.customer, review.product)).collect();
            assert_eq!(reviewed.len(), counts.reviews as usize);
            for product in &data.products {
                assert!(product.categories.is_sorted_by(|a, b| a < b));
                assert!(product.categories.iter().all(|category| *category < counts.categories));
            }
        }
    }
}

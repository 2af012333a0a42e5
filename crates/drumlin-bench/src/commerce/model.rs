//! The shop as plain maps in memory.

use std::collections::BTreeMap;

use super::{Cart, Contents, InitialData, Operation, Order, Product, Rating, Review};

/// A single-threaded shop in memory, with which every engine's answers and contents are compared.
#[derive(Clone, Debug)]
pub struct Model<'d> {
    data: &'d InitialData,
    carts: BTreeMap<u64, Vec<u32>>,
    orders: BTreeMap<u64, Order>,
    /// Reviews by customer and product.
    reviews: BTreeMap<(u32, u32), Review>,
}

impl<'d> Model<'d> {
    /// Returns the shop before the first shopper arrives.
    #[must_use]
    pub fn new(data: &'d InitialData) -> Model<'d> {
        let orders = data.orders.iter().map(|order| (order.id, order.clone())).collect();
        let reviews = data.reviews.iter().map(|review| ((review.customer, review.product), review.clone())).collect();
        Model { data, carts: BTreeMap::new(), orders, reviews }
    }

    /// Performs an operation. Returns the product if the operation reads one.
    ///
    /// # Panics
    /// If a cart does not exist.
    pub fn perform(&mut self, operation: &Operation) -> Option<(Product, Rating)> {
        match operation {
            Operation::LookUp { product } | Operation::Find { product } => {
                return Some((self.data.product(*product).clone(), self.rating(*product)));
            }
            Operation::CreateCart { cart } => drop(self.carts.insert(*cart, Vec::new())),
            Operation::AddToCart { cart, product } => self.carts.get_mut(cart).expect("a cart").push(*product),
            Operation::Checkout { cart, order, customer } => {
                let products = self.carts.remove(cart).expect("a cart");
                self.orders.insert(*order, Order { id: *order, customer: *customer, products });
            }
            Operation::Review(review) => {
                self.reviews.insert((review.customer, review.product), review.clone());
            }
        }
        None
    }

    /// Returns the rating of a product. O(reviews).
    fn rating(&self, product: u32) -> Rating {
        let of_product = self.reviews.values().filter(|review| review.product == product);
        of_product.fold(Rating::default(), |rating, review| rating.plus(review.as_rating()))
    }

    /// Returns all documents in the shop.
    #[must_use]
    pub fn contents(&self) -> Contents {
        let mut ratings = vec![Rating::default(); self.data.products.len()];
        for review in self.reviews.values() {
            let rating = &mut ratings[review.product as usize];
            *rating = rating.plus(review.as_rating());
        }
        Contents {
            customers: self.data.customers.clone(),
            categories: self.data.categories.clone(),
            products: self.data.products.iter().cloned().zip(ratings).collect(),
            carts: self.carts.iter().map(|(id, products)| Cart { id: *id, products: products.clone() }).collect(),
            orders: self.orders.values().cloned().collect(),
            reviews: self.reviews.values().cloned().collect(),
        }
    }
}

//! Drumlin's shop, with typed documents of drumlin-collections. A unique index finds products by name, a second index
//! finds the products of a category, and a view reduces reviews to the rating of each product.

use std::path::Path;

use drumlin::{Config, Database};
use drumlin_collections::{Collection, Collections, Documents, Index, Parts, Postcard, Transaction, View};

use crate::commerce::{
    Cart, Category, Contents, Customer, InitialData, LOAD_BATCH, Order, Product, Rating, Review, Session, Shop,
    missing_cart,
};
use crate::engine::{Durability, Failure, Result, Settings};

impl Collection for Customer {
    type Key = u32;
    type Codec = Postcard;
    const NAME: &'static str = "customers";

    fn key(&self) -> u32 {
        self.id
    }
}

impl Collection for Category {
    type Key = u32;
    type Codec = Postcard;
    const NAME: &'static str = "categories";

    fn key(&self) -> u32 {
        self.id
    }
}

const BY_NAME: Index<Product, String> = Index::new("by name", |product: &Product| product.name.clone()).unique();
const BY_CATEGORY: Index<Product, u32> = Index::many("by category", |product| product.categories.clone());

impl Collection for Product {
    type Key = u32;
    type Codec = Postcard;
    const NAME: &'static str = "products";

    fn key(&self) -> u32 {
        self.id
    }

    fn parts() -> Parts<Product> {
        Parts::new().index(BY_NAME).index(BY_CATEGORY)
    }
}

impl Collection for Cart {
    type Key = u64;
    type Codec = Postcard;
    const NAME: &'static str = "carts";

    fn key(&self) -> u64 {
        self.id
    }
}

impl Collection for Order {
    type Key = u64;
    type Codec = Postcard;
    const NAME: &'static str = "orders";

    fn key(&self) -> u64 {
        self.id
    }
}

const RATINGS: View<Review, u32, Rating> =
    View::new("ratings", |review: &Review, emit| emit(review.product, review.as_rating())).reducing(Rating::plus);

impl Collection for Review {
    type Key = (u32, u32);
    type Codec = Postcard;
    const NAME: &'static str = "reviews";

    fn key(&self) -> (u32, u32) {
        (self.customer, self.product)
    }

    fn parts() -> Parts<Review> {
        Parts::new().view(RATINGS)
    }
}

struct DrumlinShop {
    db: Database,
    collections: Collections,
    customers: Documents<Customer>,
    categories: Documents<Category>,
    products: Documents<Product>,
    carts: Documents<Cart>,
    orders: Documents<Order>,
    reviews: Documents<Review>,
}

pub(super) fn open(folder: &Path, settings: &Settings) -> Result<Box<dyn Shop>> {
    let durability = match settings.durability {
        Durability::Full => drumlin::Durability::Full,
        Durability::Relaxed => drumlin::Durability::Relaxed,
    };
    let db = Config::new().memory(settings.memory_bytes).durability(durability).open(folder.join("drumlin"))?;
    let collections = Collections::new(&db);
    Ok(Box::new(DrumlinShop {
        customers: collections.open()?,
        categories: collections.open()?,
        products: collections.open()?,
        carts: collections.open()?,
        orders: collections.open()?,
        reviews: collections.open()?,
        collections,
        db,
    }))
}

impl DrumlinShop {
    fn load_all<C: Collection>(&self, documents: &Documents<C>, all: &[C]) -> Result<()> {
        for batch in all.chunks(LOAD_BATCH) {
            let load = |tx: &mut Transaction<'_>| batch.iter().try_for_each(|document| tx.insert(documents, document));
            self.collections.transact(load)?;
        }
        Ok(())
    }
}

fn all<C: Collection>(documents: &Documents<C>) -> Result<Vec<C>> {
    Ok(documents.iter().collect::<Result<_, _>>()?)
}

impl Shop for DrumlinShop {
    fn load(&self, data: &InitialData) -> Result<()> {
        self.load_all(&self.customers, &data.customers)?;
        self.load_all(&self.categories, &data.categories)?;
        self.load_all(&self.products, &data.products)?;
        self.load_all(&self.orders, &data.orders)?;
        self.load_all(&self.reviews, &data.reviews)
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Agent { shop: self }))
    }

    fn contents(&self) -> Result<Contents> {
        let mut agent = Agent { shop: self };
        let missing = |id: u32| -> Failure { format!("product {id} is missing").into() };
        let products = all(&self.products)?;
        let products = products.iter().map(|product| agent.look_up(product.id)?.ok_or_else(|| missing(product.id)));
        Ok(Contents {
            products: products.collect::<Result<_>>()?,
            customers: all(&self.customers)?,
            categories: all(&self.categories)?,
            carts: all(&self.carts)?,
            orders: all(&self.orders)?,
            reviews: all(&self.reviews)?,
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.close()?)
    }
}

struct Agent<'s> {
    shop: &'s DrumlinShop,
}

impl Agent<'_> {
    /// Returns the product that `find` finds, with its rating. Both are read from the same new snapshot.
    fn rated(
        &self,
        find: impl FnOnce(&drumlin::Snapshot) -> drumlin_collections::Result<Option<Product>>,
    ) -> Result<Option<(Product, Rating)>> {
        let snapshot = self.shop.db.snapshot();
        let Some(product) = find(&snapshot)? else { return Ok(None) };
        let ratings = self.shop.reviews.at(&snapshot).view(&RATINGS);
        let rating = ratings.reduce(product.id..=product.id)?;
        Ok(Some((product, rating.unwrap_or_default())))
    }
}

impl Session for Agent<'_> {
    fn look_up(&mut self, product: u32) -> Result<Option<(Product, Rating)>> {
        self.rated(|snapshot| self.shop.products.at(snapshot).get(product))
    }

    fn find(&mut self, name: &str) -> Result<Option<(Product, Rating)>> {
        self.rated(|snapshot| self.shop.products.at(snapshot).index(&BY_NAME).first(name))
    }

    fn create_cart(&mut self, cart: u64) -> Result<()> {
        Ok(self.shop.carts.insert(&Cart { id: cart, products: Vec::new() })?)
    }

    fn add_to_cart(&mut self, cart: u64, product: u32) -> Result<()> {
        let added = self.shop.carts.update(cart, |cart| cart.products.push(product))?;
        added.ok_or_else(|| missing_cart(cart))
    }

    fn check_out(&mut self, cart: u64, order: u64, customer: u32) -> Result<()> {
        let DrumlinShop { carts, orders, .. } = self.shop;
        let ordered = self.shop.collections.transact(|tx| {
            let Some(Cart { products, .. }) = tx.remove(carts, cart)? else { return Ok(None) };
            tx.insert(orders, &Order { id: order, customer, products })?;
            Ok::<_, drumlin_collections::Error>(Some(()))
        });
        ordered?.ok_or_else(|| missing_cart(cart))
    }

    fn review(&mut self, review: &Review) -> Result<()> {
        Ok(self.shop.reviews.put(review)?)
    }
}

//! The commerce benchmark of BonsaiDb (S2): shoppers search for products, fill carts, check out and write reviews.
//!
//! - `data`: the initial products, customers, orders and reviews, in three sizes.
//! - `shopper`: the operations of each shopper, generated from a seed, for three kinds of traffic.
//! - `model`: the same shop as plain maps. Every engine's answers and contents are compared with it.
//! - `tally`: the ratings that a read may return while other agents write reviews.
//!
//! The documents, sizes and probabilities are those of BonsaiDb's benchmark, with two differences. First, the keys of
//! carts and orders are derived from the shopper's number, so all engines store the same rows. Second, each customer
//! belongs to one agent, so a customer's last review of a product, and therefore every rating, does not depend on the
//! order in which the threads run.
//!
//! `shops/` implements the shop for each engine.

mod data;
mod model;
mod shopper;
mod tally;

use std::fmt::Debug;

use serde::{Deserialize, Serialize};

use crate::engine::Result;

pub use data::{InitialData, Size};
pub use model::Model;
pub use shopper::{Shoppers, Traffic};
pub(crate) use tally::{Delta, Tally};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Customer {
    pub id: u32,
    /// The customer's name, unique among all customers.
    pub name: String,
    /// The customer's email address, unique among all customers.
    pub email: String,
    /// Number and street.
    pub address: String,
    pub city: String,
    pub region: String,
    /// A two-letter code.
    pub country: String,
    /// Five digits.
    pub postal_code: String,
    /// Starts with a country code.
    pub phone: String,
}

/// A category of products.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Category {
    pub id: u32,
    pub name: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Product {
    pub id: u32,
    /// Unique, so that a product can be found by its name.
    pub name: String,
    /// The keys of its categories, ascending.
    pub categories: Vec<u32>,
}

/// A shopper's cart.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cart {
    /// The shopper's number.
    pub id: u64,
    /// The keys of the products in the order in which they were added. A product may occur more than once.
    pub products: Vec<u32>,
}

/// An order of a customer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Order {
    pub id: u64,
    pub customer: u32,
    /// The keys of the products, in the order of the cart.
    pub products: Vec<u32>,
}

/// A review. Each customer has at most one review of each product.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Review {
    /// The first part of the key.
    pub customer: u32,
    /// The second part of the key.
    pub product: u32,
    /// The rating, from 1 to 5.
    pub rating: u8,
    /// The review's text. Only some reviews have one.
    pub text: Option<String>,
}

impl Review {
    /// Returns the review's contribution to the product's rating.
    #[must_use]
    pub fn as_rating(&self) -> Rating {
        Rating { count: 1, total: u64::from(self.rating) }
    }
}

/// The rating of a product, summed over its reviews.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Rating {
    /// The number of reviews.
    pub count: u64,
    /// The sum of the reviews' ratings.
    pub total: u64,
}

impl Rating {
    /// Returns the sum of two ratings.
    #[must_use]
    pub fn plus(self, other: Rating) -> Rating {
        Rating { count: self.count + other.count, total: self.total + other.total }
    }
}

/// An operation of a shopper. Each operation that writes is one durable commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reads a product by its key, with its rating.
    LookUp { product: u32 },
    /// Reads a product by its name, with its rating.
    Find {
        /// The key of the product. The engine receives only the product's name.
        product: u32,
    },
    /// Creates an empty cart.
    CreateCart { cart: u64 },
    /// Appends a product to a cart.
    AddToCart { cart: u64, product: u32 },
    /// Turns a cart into an order and removes the cart, atomically.
    Checkout { cart: u64, order: u64, customer: u32 },
    /// Stores a review. It replaces an earlier review of the same product by the same customer.
    Review(Review),
}

/// The kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// [`Operation::LookUp`].
    LookUp,
    /// [`Operation::Find`].
    Find,
    /// [`Operation::CreateCart`].
    CreateCart,
    /// [`Operation::AddToCart`].
    AddToCart,
    /// [`Operation::Checkout`].
    Checkout,
    /// [`Operation::Review`].
    Review,
}

impl Kind {
    /// All kinds, in the order of the reports.
    pub const ALL: [Kind; 6] =
        [Kind::LookUp, Kind::Find, Kind::CreateCart, Kind::AddToCart, Kind::Checkout, Kind::Review];

    /// Returns the kind's name in the reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::LookUp => "product by key",
            Kind::Find => "product by name",
            Kind::CreateCart => "new cart",
            Kind::AddToCart => "product into cart",
            Kind::Checkout => "checkout",
            Kind::Review => "review",
        }
    }
}

impl Operation {
    /// Returns the kind of this operation.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Operation::LookUp { .. } => Kind::LookUp,
            Operation::Find { .. } => Kind::Find,
            Operation::CreateCart { .. } => Kind::CreateCart,
            Operation::AddToCart { .. } => Kind::AddToCart,
            Operation::Checkout { .. } => Kind::Checkout,
            Operation::Review(_) => Kind::Review,
        }
    }
}

/// An open shop of an engine, with the tables or collections that it needs. The methods return the engine's own errors.
pub trait Shop: Send + Sync {
    /// Stores the initial data, in transactions of [`LOAD_BATCH`] documents.
    fn load(&self, data: &InitialData) -> Result<()>;

    /// Opens a session for an agent.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Reads all documents in the shop.
    fn contents(&self) -> Result<Contents>;

    fn close(self: Box<Self>) -> Result<()>;
}

/// The number of documents per transaction of the load.
pub const LOAD_BATCH: usize = 100;

/// The operations that an agent performs on a shop. A read sees the products and reviews at one point in time, and a
/// write is durable when it returns. The methods return the engine's own errors.
pub trait Session {
    /// Performs [`Operation::LookUp`]. Returns `None` if there is no such product.
    fn look_up(&mut self, product: u32) -> Result<Option<(Product, Rating)>>;

    /// Performs [`Operation::Find`]. Returns `None` if there is no such product.
    fn find(&mut self, name: &str) -> Result<Option<(Product, Rating)>>;

    /// Performs [`Operation::CreateCart`].
    fn create_cart(&mut self, cart: u64) -> Result<()>;

    /// Performs [`Operation::AddToCart`]. Fails if there is no such cart.
    fn add_to_cart(&mut self, cart: u64, product: u32) -> Result<()>;

    /// Performs [`Operation::Checkout`]. Fails if there is no such cart.
    fn check_out(&mut self, cart: u64, order: u64, customer: u32) -> Result<()>;

    /// Performs [`Operation::Review`].
    fn review(&mut self, review: &Review) -> Result<()>;
}

/// Performs an operation. Returns the product if the operation reads one.
///
/// # Errors
/// The errors of the session.
pub fn perform(
    session: &mut dyn Session,
    operation: &Operation,
    data: &InitialData,
) -> Result<Option<(Product, Rating)>> {
    match operation {
        Operation::LookUp { product } => return session.look_up(*product),
        Operation::Find { product } => return session.find(&data.product(*product).name),
        Operation::CreateCart { cart } => session.create_cart(*cart)?,
        Operation::AddToCart { cart, product } => session.add_to_cart(*cart, *product)?,
        Operation::Checkout { cart, order, customer } => session.check_out(*cart, *order, *customer)?,
        Operation::Review(review) => session.review(review)?,
    }
    Ok(None)
}

/// Returns the error for a cart that does not exist.
pub(crate) fn missing_cart(cart: u64) -> crate::engine::Failure {
    format!("cart {cart} is missing").into()
}

/// All documents of a shop, each kind in key order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Contents {
    pub customers: Vec<Customer>,
    pub categories: Vec<Category>,
    /// Each product with the rating that a look-up returns.
    pub products: Vec<(Product, Rating)>,
    /// The carts that were not checked out.
    pub carts: Vec<Cart>,
    pub orders: Vec<Order>,
    pub reviews: Vec<Review>,
}

impl Contents {
    /// Compares the contents of a shop with the expected contents.
    ///
    /// # Errors
    /// An error that names the first difference.
    pub fn verify(&self, expected: &Contents) -> Result<()> {
        same("customer", &self.customers, &expected.customers)?;
        same("category", &self.categories, &expected.categories)?;
        same("product", &self.products, &expected.products)?;
        same("cart", &self.carts, &expected.carts)?;
        same("order", &self.orders, &expected.orders)?;
        same("review", &self.reviews, &expected.reviews)
    }
}

fn same<T: PartialEq + Debug>(what: &str, found: &[T], expected: &[T]) -> Result<()> {
    let length = found.len().max(expected.len());
    match (0..length).find(|index| found.get(*index) != expected.get(*index)) {
        None => Ok(()),
        Some(index) => {
            let (found, expected) = (found.get(index), expected.get(index));
            Err(format!("a {what} is {found:?}, and ought to be {expected:?}").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a document is missing, different or unexpected, the error names its kind.
    #[test]
    fn contents_that_differ_are_reported() {
        let cart = |id| Cart { id, products: vec![1] };
        let expected = Contents { carts: vec![cart(1), cart(2)], ..Contents::default() };
        assert!(expected.verify(&expected).is_ok());
        for carts in [vec![cart(1)], vec![cart(1), cart(3)], vec![cart(1), cart(2), cart(3)]] {
            let error = Contents { carts, ..Contents::default() }.verify(&expected).unwrap_err();
            assert!(error.to_string().starts_with("a cart is"), "{error}");
        }
    }
}

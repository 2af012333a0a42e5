//! The commerce benchmark of BonsaiDb (S2): shoppers look for products, fill carts, check out and review.
//!
//! - `data`: the products, customers, orders and reviews of the beginning, in three sizes;
//! - `shopper`: the operations of each shopper, from a seed, in three kinds of traffic;
//! - `model`: the same shop as plain maps, whose answers and contents every engine has to give;
//! - `tally`: the ratings that are right while other agents write reviews.
//!
//! The model, the sizes and the chances are BonsaiDb's. Two things differ. Carts and orders have the shopper's number,
//! given by the plan, so that all engines store the same rows. And the customers are divided among the agents, so that
//! the last review of a product by a customer, and with it every rating, does not depend on the order of the threads.
//!
//! Each engine's shop is in `shops/`.

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

/// A customer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Customer {
    /// The key.
    pub id: u32,
    /// Unlike that of any other.
    pub name: String,
    /// Unlike that of any other.
    pub email: String,
    /// Number and street.
    pub address: String,
    /// Of the address.
    pub city: String,
    /// Of the address.
    pub region: String,
    /// Two letters.
    pub country: String,
    /// Five digits.
    pub postal_code: String,
    /// With the country's prefix.
    pub phone: String,
}

/// A category of products.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Category {
    /// The key.
    pub id: u32,
    /// Its name.
    pub name: String,
}

/// A product.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Product {
    /// The key.
    pub id: u32,
    /// Unlike that of any other: products are found by it.
    pub name: String,
    /// Ascending.
    pub categories: Vec<u32>,
}

/// A shopper's cart.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cart {
    /// The key: the shopper's number.
    pub id: u64,
    /// In the order in which they were added; a product may be there twice.
    pub products: Vec<u32>,
}

/// An order of a customer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The key.
    pub id: u64,
    /// The customer's key.
    pub customer: u32,
    /// In the order of the cart.
    pub products: Vec<u32>,
}

/// A review; a customer has at most one of a product.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Review {
    /// The first part of the key.
    pub customer: u32,
    /// The second part of the key.
    pub product: u32,
    /// 1 to 5.
    pub rating: u8,
    /// Some have text.
    pub text: Option<String>,
}

impl Review {
    /// Its share of the product's rating.
    #[must_use]
    pub fn as_rating(&self) -> Rating {
        Rating { count: 1, total: u64::from(self.rating) }
    }
}

/// The reviews of a product, summed up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Rating {
    /// Reviews.
    pub count: u64,
    /// The sum of their ratings.
    pub total: u64,
}

impl Rating {
    /// That of both together.
    #[must_use]
    pub fn plus(self, other: Rating) -> Rating {
        Rating { count: self.count + other.count, total: self.total + other.total }
    }
}

/// An operation of a shopper. Each that writes is one durable commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A product by its key, with its rating.
    LookUp {
        /// The product.
        product: u32,
    },
    /// A product by its name, with its rating.
    Find {
        /// The product, which the engine is not told.
        product: u32,
    },
    /// A new, empty cart.
    CreateCart {
        /// Its key.
        cart: u64,
    },
    /// A product is appended to a cart.
    AddToCart {
        /// The cart.
        cart: u64,
        /// The product.
        product: u32,
    },
    /// A cart becomes an order and is removed, at once.
    Checkout {
        /// The cart.
        cart: u64,
        /// The key of the order.
        order: u64,
        /// The customer.
        customer: u32,
    },
    /// A review, in place of the one that the customer may have written of the product before.
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

    /// The name in the reports.
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
    /// Its kind.
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

/// An engine's shop: open, with the tables or collections that it needs.
pub trait Shop: Send + Sync {
    /// Stores the data of the beginning, in transactions of [`LOAD_BATCH`] documents.
    ///
    /// # Errors
    /// The engine's own.
    fn load(&self, data: &InitialData) -> Result<()>;

    /// An agent's access to it.
    ///
    /// # Errors
    /// The engine's own.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Reads all that it holds.
    ///
    /// # Errors
    /// The engine's own.
    fn contents(&self) -> Result<Contents>;

    /// Closes it.
    ///
    /// # Errors
    /// The engine's own.
    fn close(self: Box<Self>) -> Result<()>;
}

/// Documents in a transaction of the load.
pub const LOAD_BATCH: usize = 100;

/// An agent's access to a shop. Reads see one moment of products and reviews; a write is durable when it returns.
pub trait Session {
    /// [`Operation::LookUp`]: none if there is no such product.
    ///
    /// # Errors
    /// The engine's own.
    fn look_up(&mut self, product: u32) -> Result<Option<(Product, Rating)>>;

    /// [`Operation::Find`]: none if there is no such product.
    ///
    /// # Errors
    /// The engine's own.
    fn find(&mut self, name: &str) -> Result<Option<(Product, Rating)>>;

    /// [`Operation::CreateCart`].
    ///
    /// # Errors
    /// The engine's own.
    fn create_cart(&mut self, cart: u64) -> Result<()>;

    /// [`Operation::AddToCart`].
    ///
    /// # Errors
    /// The engine's own; or there is no such cart.
    fn add_to_cart(&mut self, cart: u64, product: u32) -> Result<()>;

    /// [`Operation::Checkout`].
    ///
    /// # Errors
    /// The engine's own; or there is no such cart.
    fn check_out(&mut self, cart: u64, order: u64, customer: u32) -> Result<()>;

    /// [`Operation::Review`].
    ///
    /// # Errors
    /// The engine's own.
    fn review(&mut self, review: &Review) -> Result<()>;
}

/// Performs an operation. Returns the product of one that reads.
///
/// # Errors
/// Those of the session.
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

/// The error of a cart that is not there.
pub(crate) fn missing_cart(cart: u64) -> crate::engine::Failure {
    format!("cart {cart} is missing").into()
}

/// All that a shop holds, each kind in the order of its keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Contents {
    /// Customers.
    pub customers: Vec<Customer>,
    /// Categories.
    pub categories: Vec<Category>,
    /// Products, each with the rating that a look-up returns.
    pub products: Vec<(Product, Rating)>,
    /// Carts that were not checked out.
    pub carts: Vec<Cart>,
    /// Orders.
    pub orders: Vec<Order>,
    /// Reviews.
    pub reviews: Vec<Review>,
}

impl Contents {
    /// Compares what a shop holds with what it has to hold.
    ///
    /// # Errors
    /// Names the first difference.
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

    /// A document that is missing, differs, or is one too many is found and named.
    #[test]
    fn contents_that_differ_are_told() {
        let cart = |id| Cart { id, products: vec![1] };
        let expected = Contents { carts: vec![cart(1), cart(2)], ..Contents::default() };
        assert!(expected.verify(&expected).is_ok());
        for carts in [vec![cart(1)], vec![cart(1), cart(3)], vec![cart(1), cart(2), cart(3)]] {
            let error = Contents { carts, ..Contents::default() }.verify(&expected).unwrap_err();
            assert!(error.to_string().starts_with("a cart is"), "{error}");
        }
    }
}

//! SQLite's shop: one table for each kind of document, and one table for each list in a document. Each connection
//! prepares its statements once. The settings are those of the engine `sqlite`.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use rusqlite::{Connection, Row, params};

use crate::commerce::{
    Cart, Category, Contents, Customer, InitialData, LOAD_BATCH, Order, Product, Rating, Review, Session, Shop,
    missing_cart,
};
use crate::engine::{Durability, Failure, Result, Settings};

/// The rows of a list are clustered by their cart, order or product. The index on reviews covers the query for a
/// rating.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS customers (
        id INTEGER PRIMARY KEY, name TEXT, email TEXT, address TEXT, city TEXT, region TEXT, country TEXT,
        postal_code TEXT, phone TEXT);
    CREATE TABLE IF NOT EXISTS categories (id INTEGER PRIMARY KEY, name TEXT);
    CREATE TABLE IF NOT EXISTS products (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
    CREATE TABLE IF NOT EXISTS product_categories (
        product INTEGER, category INTEGER, PRIMARY KEY (product, category)) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS products_by_category ON product_categories (category);
    CREATE TABLE IF NOT EXISTS carts (id INTEGER PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS cart_products (
        cart INTEGER, place INTEGER, product INTEGER, PRIMARY KEY (cart, place)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer INTEGER);
    CREATE TABLE IF NOT EXISTS order_products (
        \"order\" INTEGER, place INTEGER, product INTEGER, PRIMARY KEY (\"order\", place)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS reviews (
        customer INTEGER, product INTEGER, rating INTEGER, text TEXT, PRIMARY KEY (customer, product)) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS reviews_by_product ON reviews (product, rating);";

/// Selects a product with its rating. If the product has no reviews, the sum is `NULL`.
macro_rules! rated {
    ($condition:literal) => {
        concat!(
            "SELECT products.id, products.name, count(reviews.rating), sum(reviews.rating) \
             FROM products LEFT JOIN reviews ON reviews.product = products.id WHERE ",
            $condition
        )
    };
}

const RATED_BY_KEY: &str = rated!("products.id = ?1");
const RATED_BY_NAME: &str = rated!("products.name = ?1");
const REVIEW: &str = "INSERT INTO reviews VALUES (?1, ?2, ?3, ?4) \
                      ON CONFLICT DO UPDATE SET rating = excluded.rating, text = excluded.text";
/// The number of prepared statements that a connection caches: more than the shop uses.
const STATEMENTS: usize = 64;

struct SqliteShop {
    path: PathBuf,
    synchronous: &'static str,
    cache_kib: u64,
    /// The connection for loading, for reading all contents and for closing. Each session has its own connection.
    own: Mutex<Connection>,
    /// Held by the session that is writing. Without this lock, sessions would sleep when they find the database busy.
    writer: Mutex<()>,
}

pub(super) fn open(folder: &Path, settings: &Settings) -> Result<Box<dyn Shop>> {
    let synchronous = match settings.durability {
        Durability::Full => "FULL",
        Durability::Relaxed => "NORMAL",
    };
    let path = folder.join("shop.sqlite");
    let cache_kib = (settings.memory_bytes >> 10) / (settings.threads as u64 + 1);
    let own = connect(&path, synchronous, cache_kib)?;
    own.execute_batch(SCHEMA)?;
    Ok(Box::new(SqliteShop { path, synchronous, cache_kib, own: Mutex::new(own), writer: Mutex::new(()) }))
}

fn connect(path: &Path, synchronous: &str, cache_kib: u64) -> Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.execute_batch(&format!(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}; PRAGMA cache_size = -{cache_kib};"
    ))?;
    Ok(connection)
}

/// Runs `body` between a begin and a commit statement. If `body` fails, rolls back its changes.
fn within<T>(connection: &Connection, begin: &str, body: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    connection.prepare_cached(begin)?.execute([])?;
    let done = body(connection);
    let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
    connection.prepare_cached(end)?.execute([])?;
    done
}

fn insert_product(connection: &Connection, product: &Product) -> Result<()> {
    connection.prepare_cached("INSERT INTO products VALUES (?1, ?2)")?.execute((product.id, &product.name))?;
    let mut statement = connection.prepare_cached("INSERT INTO product_categories VALUES (?1, ?2)")?;
    for category in &product.categories {
        statement.execute((product.id, category))?;
    }
    Ok(())
}

fn insert_order(connection: &Connection, order: &Order) -> Result<()> {
    let id = integer(order.id)?;
    connection.prepare_cached("INSERT INTO orders VALUES (?1, ?2)")?.execute((id, order.customer))?;
    let mut statement = connection.prepare_cached("INSERT INTO order_products VALUES (?1, ?2, ?3)")?;
    for (place, product) in order.products.iter().enumerate() {
        statement.execute((id, place as i64, product))?;
    }
    Ok(())
}

fn insert_customer(connection: &Connection, customer: &Customer) -> Result<()> {
    let Customer { id, name, email, address, city, region, country, postal_code, phone } = customer;
    connection
        .prepare_cached("INSERT INTO customers VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)")?
        .execute(params![id, name, email, address, city, region, country, postal_code, phone])?;
    Ok(())
}

fn insert_category(connection: &Connection, category: &Category) -> Result<()> {
    connection.prepare_cached("INSERT INTO categories VALUES (?1, ?2)")?.execute((category.id, &category.name))?;
    Ok(())
}

fn put_review(connection: &Connection, review: &Review) -> Result<()> {
    let row = (review.customer, review.product, review.rating, &review.text);
    connection.prepare_cached(REVIEW)?.execute(row)?;
    Ok(())
}

/// Runs a query and returns its rows, each converted by `row`.
fn rows<T>(
    connection: &Connection,
    sql: &str,
    key: impl rusqlite::Params,
    row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>> {
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_map(key, row)?.collect::<Result<_, _>>()?;
    Ok(found)
}

/// Returns a product with its rating. Reads both in one transaction.
fn rated(connection: &Connection, sql: &str, key: impl rusqlite::ToSql) -> Result<Option<(Product, Rating)>> {
    within(connection, "BEGIN", |connection| {
        let (id, name, rating) = connection.prepare_cached(sql)?.query_row([key], |row| {
            let rating =
                Rating { count: number(row.get(2)?)?, total: number(row.get::<_, Option<i64>>(3)?.unwrap_or(0))? };
            Ok((row.get::<_, Option<u32>>(0)?, row.get::<_, Option<String>>(1)?, rating))
        })?;
        let (Some(id), Some(name)) = (id, name) else { return Ok(None) };
        let sql = "SELECT category FROM product_categories WHERE product = ?1 ORDER BY category";
        let categories = rows(connection, sql, [id], |row| row.get(0))?;
        Ok(Some((Product { id, name, categories }, rating)))
    })
}

/// Converts the number of a cart or order to an SQLite integer.
fn integer(number: u64) -> Result<i64> {
    Ok(i64::try_from(number)?)
}

/// Converts an SQLite integer to a number, a count or a sum.
fn number(integer: i64) -> rusqlite::Result<u64> {
    u64::try_from(integer).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(0, integer))
}

impl SqliteShop {
    fn load_all<T>(&self, all: &[T], insert: fn(&Connection, &T) -> Result<()>) -> Result<()> {
        let own = self.own.lock().expect("no call panics");
        for batch in all.chunks(LOAD_BATCH) {
            within(&own, "BEGIN IMMEDIATE", |connection| batch.iter().try_for_each(|row| insert(connection, row)))?;
        }
        Ok(())
    }
}

impl Shop for SqliteShop {
    fn load(&self, data: &InitialData) -> Result<()> {
        self.load_all(&data.customers, insert_customer)?;
        self.load_all(&data.categories, insert_category)?;
        self.load_all(&data.products, insert_product)?;
        self.load_all(&data.orders, insert_order)?;
        self.load_all(&data.reviews, put_review)
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let connection = connect(&self.path, self.synchronous, self.cache_kib)?;
        Ok(Box::new(Agent { connection, writer: &self.writer }))
    }

    fn contents(&self) -> Result<Contents> {
        let own = self.own.lock().expect("no call panics");
        let ids: Vec<u32> = rows(&own, "SELECT id FROM products ORDER BY id", [], |row| row.get(0))?;
        let missing = |id: u32| -> Failure { format!("product {id} is missing").into() };
        let products = ids.into_iter().map(|id| rated(&own, RATED_BY_KEY, id)?.ok_or_else(|| missing(id)));
        let carts = rows(&own, "SELECT id FROM carts ORDER BY id", [], |row| {
            let id = row.get(0)?;
            let sql = "SELECT product FROM cart_products WHERE cart = ?1 ORDER BY place";
            Ok(Cart { id: number(id)?, products: list(&own, sql, id)? })
        });
        let orders = rows(&own, "SELECT id, customer FROM orders ORDER BY id", [], |row| {
            let id = row.get(0)?;
            let sql = "SELECT product FROM order_products WHERE \"order\" = ?1 ORDER BY place";
            Ok(Order { id: number(id)?, customer: row.get(1)?, products: list(&own, sql, id)? })
        });
        Ok(Contents {
            products: products.collect::<Result<_>>()?,
            customers: rows(&own, "SELECT * FROM customers ORDER BY id", [], customer)?,
            categories: rows(&own, "SELECT * FROM categories ORDER BY id", [], |row| {
                Ok(Category { id: row.get(0)?, name: row.get(1)? })
            })?,
            carts: carts?,
            orders: orders?,
            reviews: rows(&own, "SELECT * FROM reviews ORDER BY customer, product", [], |row| {
                Ok(Review { customer: row.get(0)?, product: row.get(1)?, rating: row.get(2)?, text: row.get(3)? })
            })?,
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.own.into_inner().expect("no call panics").close().map_err(|(_, error)| error)?;
        Ok(())
    }
}

fn list(connection: &Connection, sql: &str, id: i64) -> rusqlite::Result<Vec<u32>> {
    connection.prepare_cached(sql)?.query_map([id], |row| row.get(0))?.collect()
}

fn customer(row: &Row<'_>) -> rusqlite::Result<Customer> {
    Ok(Customer {
        id: row.get(0)?,
        name: row.get(1)?,
        email: row.get(2)?,
        address: row.get(3)?,
        city: row.get(4)?,
        region: row.get(5)?,
        country: row.get(6)?,
        postal_code: row.get(7)?,
        phone: row.get(8)?,
    })
}

struct Agent<'s> {
    connection: Connection,
    writer: &'s Mutex<()>,
}

impl Agent<'_> {
    fn write(&mut self, body: impl FnOnce(&Connection) -> Result<()>) -> Result<()> {
        let _turn = self.writer.lock().expect("no call panics");
        within(&self.connection, "BEGIN IMMEDIATE", body)
    }
}

impl Session for Agent<'_> {
    fn look_up(&mut self, product: u32) -> Result<Option<(Product, Rating)>> {
        rated(&self.connection, RATED_BY_KEY, product)
    }

    fn find(&mut self, name: &str) -> Result<Option<(Product, Rating)>> {
        rated(&self.connection, RATED_BY_NAME, name)
    }

    fn create_cart(&mut self, cart: u64) -> Result<()> {
        let id = integer(cart)?;
        self.write(|connection| {
            connection.prepare_cached("INSERT INTO carts VALUES (?1)")?.execute([id])?;
            Ok(())
        })
    }

    fn add_to_cart(&mut self, cart: u64, product: u32) -> Result<()> {
        let id = integer(cart)?;
        let sql = "INSERT INTO cart_products \
                   SELECT id, (SELECT coalesce(max(place), -1) + 1 FROM cart_products WHERE cart = ?1), ?2 \
                   FROM carts WHERE id = ?1";
        self.write(|connection| match connection.prepare_cached(sql)?.execute((id, product))? {
            1 => Ok(()),
            _ => Err(missing_cart(cart)),
        })
    }

    fn check_out(&mut self, cart: u64, order: u64, customer: u32) -> Result<()> {
        let (id, order_id) = (integer(cart)?, integer(order)?);
        self.write(|connection| {
            if connection.prepare_cached("DELETE FROM carts WHERE id = ?1")?.execute([id])? == 0 {
                return Err(missing_cart(cart));
            }
            connection.prepare_cached("INSERT INTO orders VALUES (?1, ?2)")?.execute((order_id, customer))?;
            connection
                .prepare_cached(
                    "INSERT INTO order_products SELECT ?2, place, product FROM cart_products WHERE cart = ?1",
                )?
                .execute((id, order_id))?;
            connection.prepare_cached("DELETE FROM cart_products WHERE cart = ?1")?.execute([id])?;
            Ok(())
        })
    }

    fn review(&mut self, review: &Review) -> Result<()> {
        self.write(|connection| put_review(connection, review))
    }
}

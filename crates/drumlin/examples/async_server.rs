//! A small key-value server: a single thread serves all connections, and no request ever blocks it.
//!
//! ```text
//! cargo run --release -p drumlin --example async_server
//! ```
//!
//! Each connection is a task. It reads lines (`get KEY`, `put KEY VALUE`, `add KEY NUMBER`) and answers each line when
//! the database call completes. While a task waits for a page that is not in memory, a row that another connection has
//! locked, or the sync of a commit, the thread serves other connections. The program connects to itself with a hundred
//! clients, runs them for two seconds, and shows that no update was lost.

use std::time::{Duration, Instant};

use drumlin::{Database, Keyspace};
use smol::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use smol::net::{TcpListener, TcpStream};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CLIENTS: u64 = 100;
const SECONDS: u64 = 2;

/// Answers one line.
async fn answer(db: &Database, rows: &Keyspace, line: &str) -> drumlin::Result<String> {
    let mut words = line.splitn(3, ' ');
    match (words.next(), words.next(), words.next()) {
        (Some("get"), Some(key), None) => {
            let value = rows.get_async(key).await?;
            Ok(value.map_or("nothing".to_owned(), |value| String::from_utf8_lossy(&value).into_owned()))
        }
        (Some("put"), Some(key), Some(value)) => {
            rows.insert_async(key, value).await?; // Durable when this returns.
            Ok("done".to_owned())
        }
        (Some("add"), Some(key), Some(number)) => {
            let Ok(number) = number.parse::<u64>() else { return Ok("a number, please".to_owned()) };
            let sum = db.transact_async(|tx| {
                let (rows, key) = (rows.clone(), key.to_owned());
                Box::pin(async move {
                    // The row is locked until this transaction ends, so that no other task can change it before then.
                    let old = tx.get_for_update_async(&rows, &key).await?;
                    let old = old.map_or(0, |old| String::from_utf8_lossy(&old).parse::<u64>().unwrap_or(0));
                    let sum = (old + number).to_string();
                    tx.insert_async(&rows, &key, &sum).await?;
                    Ok(sum)
                })
            });
            sum.await
        }
        _ => Ok("get KEY, put KEY VALUE, or add KEY NUMBER, please".to_owned()),
    }
}

async fn serve(db: Database, rows: Keyspace, connection: TcpStream) -> Result<()> {
    let mut lines = BufReader::new(connection.clone());
    let mut connection = connection;
    let mut line = String::new();
    while lines.read_line(&mut line).await? > 0 {
        let answered = match answer(&db, &rows, line.trim_end()).await {
            Ok(text) => text,
            Err(error) => format!("error: {error}"),
        };
        connection.write_all(format!("{answered}\n").as_bytes()).await?;
        line.clear();
    }
    Ok(())
}

/// Runs one client, which adds to shared counters and puts its own rows. Returns the number of requests and the number
/// of additions.
async fn client(address: std::net::SocketAddr, number: u64) -> Result<(u64, u64)> {
    let connection = TcpStream::connect(address).await?;
    let mut lines = BufReader::new(connection.clone());
    let mut connection = connection;
    let (mut requests, mut added) = (0, 0);
    let end = Instant::now() + Duration::from_secs(SECONDS);
    let mut line = String::new();
    while Instant::now() < end {
        let request = match requests % 10 {
            0 => format!("add counter-{} 1\n", number % 10),
            1 => format!("put client-{number} request-{requests}\n"),
            _ => format!("get client-{number}\n"),
        };
        connection.write_all(request.as_bytes()).await?;
        line.clear();
        lines.read_line(&mut line).await?;
        if line.starts_with("error") {
            return Err(line.into());
        }
        added += u64::from(requests % 10 == 0);
        requests += 1;
    }
    Ok((requests, added))
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("drumlin-async-server-{}", std::process::id()));
    let outcome = smol::block_on(async {
        let db = Database::open_async(&folder).await?;
        let rows = db.keyspace_async("rows").await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        println!("serving {address} on one thread, {CLIENTS} clients for {SECONDS} s");

        // The clients, the server and all waits for the database run on this one thread.
        let executor = std::rc::Rc::new(smol::LocalExecutor::new());
        let clients: Vec<_> = (0..CLIENTS).map(|number| executor.spawn(client(address, number))).collect();
        let server = executor.spawn({
            let (db, rows, executor_of) = (db.clone(), rows.clone(), std::rc::Rc::clone(&executor));
            async move {
                let mut connections = Vec::new();
                for _ in 0..CLIENTS {
                    let (connection, _) = listener.accept().await?;
                    connections.push(executor_of.spawn(serve(db.clone(), rows.clone(), connection)));
                }
                for connection in connections {
                    connection.await?;
                }
                Result::Ok(())
            }
        });
        let work = async {
            let (mut requests, mut added) = (0, 0);
            for client in clients {
                let (answered, adds) = client.await?;
                requests += answered;
                added += adds;
            }
            server.await?;
            Result::Ok((requests, added))
        };
        let (requests, added) = executor.run(work).await?;

        let mut counted = 0;
        let mut counters = rows.prefix("counter-");
        while let Some(row) = counters.next_async().await {
            let (_, value) = row?;
            counted += String::from_utf8_lossy(&value).parse::<u64>()?;
        }
        println!("{requests} requests answered, {} a second", requests / SECONDS);
        println!("{added} additions acknowledged, {counted} in the counters");
        assert_eq!(added, counted, "an addition was lost");
        drop((counters, rows));
        db.close_async().await?;
        Result::Ok(())
    });
    std::fs::remove_dir_all(&folder)?;
    outcome
}

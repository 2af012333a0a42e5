//! Futures that are polled a given number of times and then dropped, and a list of the methods that return futures.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future until it is ready. The thread sleeps while the future waits.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Like [`block_on`], but also returns the number of polls.
pub fn count_polls<T>(future: impl Future<Output = T>) -> (T, usize) {
    let mut future = pin!(future);
    let mut polls = 0;
    let value = block_on(poll_fn(|context| {
        polls += 1;
        future.as_mut().poll(context)
    }));
    (value, polls)
}

/// Polls a future at most `polls` times, then drops it while the operation that it waits for is in flight.
pub async fn within_polls<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut polls_left = polls;
    poll_fn(|context| {
        polls_left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if polls_left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Returns the public asynchronous methods in a folder of source files, as `Type::method`.
///
/// # Panics
/// If the folder can't be read.
#[must_use]
pub fn async_methods(folder: &Path) -> BTreeSet<String> {
    let mut methods = BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            methods.append(&mut async_methods(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            methods.extend(methods_of(&std::fs::read_to_string(&path).expect("a source")));
        }
    }
    methods
}

fn methods_of(source: &str) -> impl Iterator<Item = String> {
    let mut owner = String::new();
    source.lines().filter_map(move |line| {
        if line.starts_with("impl") {
            owner = implementing_type(line);
        }
        let rest = line.trim_start().strip_prefix("pub ")?;
        let name = rest.strip_prefix("async fn ").or_else(|| rest.strip_prefix("fn ").filter(|rest| is_async(rest)))?;
        let name: String =
            name.chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect();
        // In the macro that defines methods, the name is a variable.
        (!name.is_empty()).then(|| format!("{owner}::{name}"))
    })
}

fn is_async(signature: &str) -> bool {
    signature.split(['<', '(']).next().is_some_and(|name| name.ends_with("_async"))
}

/// Returns the type of an `impl` line, for example `Range` for `impl<'r> Iterator for Range<'r> {`.
fn implementing_type(line: &str) -> String {
    let mut depth = 0;
    let plain: String = line
        .trim_start_matches("impl")
        .replace("->", "")
        .chars()
        .filter(|character| {
            depth += i32::from(*character == '<') - i32::from(*character == '>');
            depth == 0 && *character != '>'
        })
        .collect();
    let name = plain.split(" for ").last().unwrap_or(&plain);
    name.split([' ', '{']).find(|part| !part.is_empty()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::{block_on, count_polls, methods_of, within_polls};

    /// A method is listed under the type of its `impl` block, without the type's parameters.
    #[test]
    fn methods_are_named_by_their_types() {
        let source = "impl<'r, F: FnMut(&K) -> G> Groups<'_, F> {\n    pub async fn next_async(&mut self) {}\n}\n\
                      impl Drop for Range {\n    pub fn get_async<T>() {}\n    fn own_async() {}\n}\n";
        assert!(methods_of(source).eq(["Groups::next_async", "Range::get_async"]));
    }

    /// A future is polled the requested number of times.
    #[test]
    fn futures_are_dropped_after_their_polls() {
        let twice = || async {
            smol::future::yield_now().await;
            7
        };
        assert_eq!(block_on(within_polls(1, twice())), None);
        assert_eq!(block_on(within_polls(2, twice())), Some(7));
    }

    /// Counts every poll, including the last one, which returns `Ready`.
    #[test]
    fn polls_are_counted() {
        assert_eq!(count_polls(async { 7 }), (7, 1));
        assert_eq!(count_polls(smol::future::yield_now()), ((), 2));
    }
}

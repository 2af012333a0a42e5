//! Asynchronous calls yield to other tasks even if all their rows are in memory, because the engine's calls do.

use std::future::Future;

use drumlin::{Config, Durability};
use drumlin_collections::{Collection, Collections, Documents, Index, Parts, Postcard, View};
use drumlin_testing::futures::count_polls;
use serde::{Deserialize, Serialize};

const SALES: u32 = 4000;
/// The maximum number of documents that one poll may read or write.
const TURN_MAX: u32 = 512;

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Sale {
    id: u32,
    cents: u64,
}

impl Sale {
    const BY_CENTS: Index<Sale, u64> = Index::new("by cents", |sale| sale.cents);
    const BY_DAY: View<Sale, u32, u64> =
        View::new("by day", |sale: &Sale, emit| emit(sale.id % 7, sale.cents)).reducing(|a, b| a + b);
}

impl Collection for Sale {
    type Key = u32;
    type Codec = Postcard;
    const NAME: &'static str = "sales";

    fn key(&self) -> u32 {
        self.id
    }

    fn parts() -> Parts<Sale> {
        Parts::new().index(Sale::BY_CENTS).view(Sale::BY_DAY)
    }
}

fn gives_way<T>(name: &str, documents: u32, call: impl Future<Output = T>) -> T {
    let (value, polls) = count_polls(call);
    assert!(polls as u32 >= documents / TURN_MAX, "{name}: {documents} documents in {polls} polls");
    value
}

/// Creates a collection of sales. Its commits are relaxed, so they never wait for a sync.
fn sales() -> Documents<Sale> {
    let db = Config::in_memory().memory(32 << 20).durability(Durability::Relaxed).open("").unwrap();
    let collections = Collections::new(&db);
    let sales = collections.open::<Sale>().unwrap();
    for first in (0..SALES).step_by(500) {
        let put = |tx: &mut drumlin_collections::Transaction<'_>| {
            (first..first + 500).try_for_each(|id| tx.put(&sales, &Sale { id, cents: u64::from(id) }))
        };
        collections.transact(put).unwrap();
    }
    sales
}

/// Scans of documents, of an index and of a view, and loops of single calls, yield regularly.
#[test]
fn calls_of_many_documents_give_way() {
    let sales = sales();
    let count = gives_way("Rows::next_async", SALES, async {
        let (mut rows, mut count) = (sales.iter(), 0);
        while let Some(sale) = rows.next_async().await {
            count += sale.unwrap().cents.min(1);
        }
        count
    });
    assert_eq!(count, u64::from(SALES) - 1);
    let now = sales.now();
    let found = gives_way("Found::next_async", SALES, async {
        let (mut found, mut count) = (now.index(&Sale::BY_CENTS).range(..), 0);
        while found.next_async().await.transpose().unwrap().is_some() {
            count += 1;
        }
        count
    });
    assert_eq!(found, SALES);
    let groups = gives_way("Groups::next_async", SALES, async {
        let (mut groups, mut count) = (now.view(&Sale::BY_DAY).groups_by(.., |day| *day), 0);
        while groups.next_async().await.transpose().unwrap().is_some() {
            count += 1;
        }
        count
    });
    assert_eq!(groups, 7);
    gives_way("get_async", SALES * 8, async {
        for id in 0..SALES {
            assert!(sales.get_async(id).await.unwrap().is_some());
        }
    });
    gives_way("put_async", SALES * 8, async {
        for id in 0..SALES {
            sales.put_async(&Sale { id, cents: 5 }).await.unwrap();
        }
    });
}

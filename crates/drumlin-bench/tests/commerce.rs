//! Compares the shops of this build with the in-memory model.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use drumlin_bench::commerce::{InitialData, Model, Operation, Shop, Shoppers, Size, Traffic, perform};
use drumlin_bench::engine::{Durability, Settings};
use drumlin_bench::shops::{self, Open};

fn settings(agents: u64) -> Settings {
    Settings { memory_bytes: 32 << 20, durability: Durability::Relaxed, threads: agents as usize, two_phases: false }
}

fn opened(open: Open, folder: &Path, agents: u64) -> Box<dyn Shop> {
    open(folder, &settings(agents)).unwrap()
}

/// Every engine's answers equal the model's. So do the final contents, both before and after reopening.
#[test]
fn shops_answer_like_the_model() {
    for ((name, open), size) in shops::all().into_iter().flat_map(|shop| [(shop, Size::Small), (shop, Size::Medium)]) {
        let (folder, data) = (tempfile::tempdir().unwrap(), InitialData::new(size));
        let mut model = Model::new(&data);
        let shop = opened(open, folder.path(), 1);
        shop.load(&data).unwrap();
        for (turn, traffic) in Traffic::ALL.into_iter().enumerate() {
            let shoppers = Shoppers { data: &data, traffic, agents: 1, turn: turn as u64 };
            let mut session = shop.session().unwrap();
            for number in (0..60).map(|number| turn as u64 * 60 + number) {
                for operation in shoppers.operations(number) {
                    let found = perform(&mut *session, &operation, &data).unwrap();
                    assert_eq!(found, model.perform(&operation), "{name}: {operation:?}");
                }
            }
        }
        let kinds = [model.contents().carts.len(), model.contents().orders.len() - data.orders.len()];
        assert!(kinds.iter().all(|count| *count > 10), "little happened: {kinds:?}");
        shop.contents().unwrap().verify(&model.contents()).unwrap();
        shop.close().unwrap();
        let shop = opened(open, folder.path(), 1);
        shop.contents().unwrap().verify(&model.contents()).unwrap();
        shop.close().unwrap();
    }
}

/// Several concurrent agents leave the same contents as if they had run one after another.
#[test]
fn agents_at_once_leave_what_the_model_has() {
    const AGENTS: u64 = 4;
    const SHOPPERS: u64 = 200;
    for (name, open) in shops::all() {
        let (folder, data) = (tempfile::tempdir().unwrap(), InitialData::new(Size::Small));
        let shoppers = Shoppers { data: &data, traffic: Traffic::WriteHeavy, agents: AGENTS, turn: 0 };
        let shop = opened(open, folder.path(), AGENTS);
        shop.load(&data).unwrap();
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for agent in 0..AGENTS {
                let (shop, data, done) = (&*shop, &data, &done);
                scope.spawn(move || {
                    let mut session = shop.session().unwrap();
                    for number in (agent..SHOPPERS).step_by(AGENTS as usize) {
                        for operation in shoppers.operations(number) {
                            perform(&mut *session, &operation, data).unwrap();
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let mut model = Model::new(&data);
        let operations = (0..SHOPPERS).flat_map(|number| shoppers.operations(number));
        let performed = operations.map(|operation| drop(model.perform(&operation))).count() as u64;
        assert_eq!(performed, done.into_inner());
        shop.contents().unwrap().verify(&model.contents()).unwrap_or_else(|error| panic!("{name}: {error}"));
        shop.close().unwrap();
    }
}

/// Looking up a missing product returns `None`, and using a missing cart is an error. Neither changes the contents.
#[test]
fn missing_carts_and_products_are_reported() {
    for (name, open) in shops::all() {
        let (folder, data) = (tempfile::tempdir().unwrap(), InitialData::new(Size::Small));
        let shop = opened(open, folder.path(), 1);
        shop.load(&data).unwrap();
        let mut session = shop.session().unwrap();
        assert_eq!(session.look_up(100).unwrap(), None, "{name}");
        assert_eq!(session.find("no such product").unwrap(), None, "{name}");
        assert!(session.add_to_cart(7, 1).is_err(), "{name}");
        assert!(session.check_out(7, 1000, 1).is_err(), "{name}");
        session.create_cart(7).unwrap();
        assert!(session.create_cart(7).is_err(), "{name}");
        session.add_to_cart(7, 1).unwrap();
        drop(session);
        let mut model = Model::new(&data);
        for operation in [Operation::CreateCart { cart: 7 }, Operation::AddToCart { cart: 7, product: 1 }] {
            model.perform(&operation);
        }
        shop.contents().unwrap().verify(&model.contents()).unwrap();
        shop.close().unwrap();
    }
}

//! Agents that serve shoppers. The engine's answers and the final contents of the shop are compared with those of the
//! model.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::{Figures, Turn};
use crate::commerce::{
    Delta, InitialData, Kind, Model, Operation, Product, Rating, Session, Shoppers, Size, Tally, Traffic, perform,
};
use crate::driver::{self, Actor, Pace};
use crate::engine::Result;
use crate::measure::{Latencies, Meter, histogram, record};
use crate::shops;

/// Serves shoppers until the time has run out, then compares the contents of the shop with the model.
pub(super) fn measure(turn: &Turn<'_>, size: Size, traffic: Traffic) -> Result<Figures> {
    let data = InitialData::new(size);
    let agents = turn.workload.threads;
    let open = shops::named(turn.peer.name).ok_or("the engine has no shop")?;
    let shop = open(turn.folder, &turn.settings())?;
    let begun = Instant::now();
    shop.load(&data)?;
    let load_seconds = begun.elapsed().as_secs_f64();
    let floor = Floor::new(Shoppers { data: &data, traffic, agents: agents as u64, turn: turn.turn });
    let meter = Meter::start(turn.folder);
    let outcome = driver::run(agents, turn.duration(), Pace::Closed, &|agent| {
        Ok(Box::new(Agent { floor: &floor, session: shop.session()?, own: floor.own(agent) }))
    })?;
    let mut figures = Figures::measured(&outcome, meter.costs());
    figures.kinds = floor.latencies();
    figures.more.insert("seconds to load".to_owned(), load_seconds);
    shop.contents()?.verify(&floor.model().contents())?;
    shop.close()?;
    Ok(figures)
}

/// The agents of all threads, and the tallies of the reviews that they write.
struct Floor<'d> {
    shoppers: Shoppers<'d>,
    /// The tallies, by product.
    tallies: Vec<Tally>,
    agents: Vec<Mutex<Own>>,
}

/// The part of an agent's state that outlives its thread.
struct Own {
    /// The number of the current shopper. The agent has served all of its shoppers with smaller numbers.
    shopper: u64,
    operations: Vec<Operation>,
    /// The number of operations of this shopper that have been performed.
    done: usize,
    /// The latest ratings that the agent's customers gave, by customer and product.
    ratings: BTreeMap<(u32, u32), u8>,
    latencies: BTreeMap<Kind, Histogram<u64>>,
}

impl<'d> Floor<'d> {
    fn new(shoppers: Shoppers<'d>) -> Floor<'d> {
        let tallies: Vec<Tally> = shoppers.data.products.iter().map(|_| Tally::default()).collect();
        let mut agents: Vec<Own> = (0..shoppers.agents)
            .map(|shopper| Own {
                shopper,
                operations: shoppers.operations(shopper),
                done: 0,
                ratings: BTreeMap::new(),
                latencies: BTreeMap::new(),
            })
            .collect();
        for review in &shoppers.data.reviews {
            let tally = &tallies[review.product as usize];
            tally.begin(Delta::new(None, review.rating));
            tally.end(Delta::new(None, review.rating));
            let agent = &mut agents[review.customer as usize % shoppers.agents as usize];
            agent.ratings.insert((review.customer, review.product), review.rating);
        }
        Floor { shoppers, tallies, agents: agents.into_iter().map(Mutex::new).collect() }
    }

    fn own(&self, agent: usize) -> MutexGuard<'_, Own> {
        self.agents[agent].lock().expect("no agent panics")
    }

    fn latencies(&self) -> Vec<(String, Latencies)> {
        let mut all: BTreeMap<Kind, Histogram<u64>> = BTreeMap::new();
        for agent in 0..self.agents.len() {
            for (kind, latencies) in &self.own(agent).latencies {
                all.entry(*kind).or_insert_with(histogram).add(latencies).expect("the same bounds");
            }
        }
        all.iter().map(|(kind, latencies)| (kind.name().to_owned(), Latencies::of(latencies))).collect()
    }

    /// Returns the model after all operations that the agents have performed. No two agents share a cart, order or
    /// review, so the model may perform the operations of different agents in any order.
    fn model(&self) -> Model<'d> {
        let mut model = Model::new(self.shoppers.data);
        for agent in 0..self.agents.len() {
            let own = self.own(agent);
            let writes = |operation: &&Operation| !matches!(operation.kind(), Kind::LookUp | Kind::Find);
            for shopper in (agent as u64..own.shopper).step_by(self.agents.len()) {
                self.shoppers.operations(shopper).iter().filter(writes).for_each(|write| drop(model.perform(write)));
            }
            own.operations[..own.done].iter().filter(writes).for_each(|write| drop(model.perform(write)));
        }
        model
    }
}

/// An agent while its thread runs.
struct Agent<'f, 'd> {
    floor: &'f Floor<'d>,
    session: Box<dyn Session + 'f>,
    own: MutexGuard<'f, Own>,
}

impl Actor for Agent<'_, '_> {
    fn step(&mut self) -> Result<u64> {
        let Own { shopper, operations, done, ratings, latencies } = &mut *self.own;
        let Floor { shoppers, tallies, .. } = self.floor;
        if *done == operations.len() {
            *shopper += shoppers.agents;
            *operations = shoppers.operations(*shopper);
            *done = 0;
        }
        let operation = &operations[*done];
        let session = &mut *self.session;
        let elapsed = match operation {
            Operation::LookUp { product } | Operation::Find { product } => {
                let tally = &tallies[*product as usize];
                let before = tally.before();
                let (found, elapsed) = timed(session, operation, shoppers.data)?;
                let expected = shoppers.data.product(*product);
                if !found.as_ref().is_some_and(|(found, rating)| found == expected && tally.allows(before, *rating)) {
                    return Err(format!("{found:?} was found, and ought to be {expected:?} rated {tally:?}").into());
                }
                elapsed
            }
            Operation::Review(review) => {
                let tally = &tallies[review.product as usize];
                let rated_before = ratings.insert((review.customer, review.product), review.rating);
                let delta = Delta::new(rated_before, review.rating);
                tally.begin(delta);
                let (_, elapsed) = timed(session, operation, shoppers.data)?;
                tally.end(delta);
                elapsed
            }
            _ => timed(session, operation, shoppers.data)?.1,
        };
        record(latencies.entry(operation.kind()).or_insert_with(histogram), elapsed);
        *done += 1;
        Ok(1)
    }
}

/// Performs an operation. Returns the answer and the duration of the operation.
fn timed(
    session: &mut dyn Session,
    operation: &Operation,
    data: &InitialData,
) -> Result<(Option<(Product, Rating)>, Duration)> {
    let begun = Instant::now();
    let found = perform(session, operation, data)?;
    Ok((found, begun.elapsed()))
}

//! Generates the operations of shoppers from a seed.

use drumlin_testing::Random;
use serde::{Deserialize, Serialize};

use super::{InitialData, Operation, Review};
use crate::rows::SEED;

/// The maximum number of products that a shopper searches for. The minimum is 1.
const SEARCHES_MAX: u64 = 10;

/// The mix of reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Traffic {
    /// A quarter of the products found are put into carts, a quarter of the carts become orders, and a quarter of the
    /// products ordered are reviewed.
    Balanced,
    /// Like `Balanced`, but with a tenth at each of the three steps.
    ReadHeavy,
    /// Like `Balanced`, but with nine tenths at each of the three steps.
    WriteHeavy,
}

impl Traffic {
    pub const ALL: [Traffic; 3] = [Traffic::Balanced, Traffic::ReadHeavy, Traffic::WriteHeavy];

    fn percent(self) -> u64 {
        match self {
            Traffic::Balanced => 25,
            Traffic::ReadHeavy => 10,
            Traffic::WriteHeavy => 90,
        }
    }
}

/// The shoppers of one turn. Each agent serves the shoppers with the numbers `agent`, `agent + agents`, `agent + 2 *
/// agents` and so on.
#[derive(Clone, Copy, Debug)]
pub struct Shoppers<'d> {
    /// The data in which the shoppers search.
    pub data: &'d InitialData,
    pub traffic: Traffic,
    /// The number of agents. There must be at least as many customers.
    pub agents: u64,
    /// The number of the turn. Each turn has its own shoppers.
    pub turn: u64,
}

impl Shoppers<'_> {
    /// Returns the operations of the shopper with this number, in order. They are the same on every call.
    #[must_use]
    pub fn operations(&self, number: u64) -> Vec<Operation> {
        // Draw the seed from the combined number. If that number were the seed, the sequences of neighbouring numbers
        // would overlap.
        let mut random = Random(Random(SEED ^ (self.turn << 48) ^ number).next());
        let percent = self.traffic.percent();
        let mut operations = Vec::new();
        let mut in_cart = Vec::new();
        for _ in 0..1 + random.below(SEARCHES_MAX) {
            let product = random.below(self.data.products.len() as u64) as u32;
            let is_by_key = random.chance(50);
            operations.push(if is_by_key { Operation::LookUp { product } } else { Operation::Find { product } });
            if random.chance(percent) {
                if in_cart.is_empty() {
                    operations.push(Operation::CreateCart { cart: number });
                }
                operations.push(Operation::AddToCart { cart: number, product });
                in_cart.push(product);
            }
        }
        if !in_cart.is_empty() && random.chance(percent) {
            let customer = self.customer(&mut random, number);
            let order = self.data.orders.len() as u64 + number;
            operations.push(Operation::Checkout { cart: number, order, customer });
            for product in in_cart {
                if random.chance(percent) {
                    let rating = 1 + random.below(5) as u8;
                    operations.push(Operation::Review(Review { customer, product, rating, text: None }));
                }
            }
        }
        operations
    }

    /// Draws a customer of the agent who serves this shopper.
    fn customer(&self, random: &mut Random, number: u64) -> u32 {
        let of_each_agent = self.data.customers.len() as u64 / self.agents;
        (random.below(of_each_agent) * self.agents + number % self.agents) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commerce::{Kind, Size};

    fn shoppers(data: &InitialData, traffic: Traffic, agents: u64) -> Shoppers<'_> {
        Shoppers { data, traffic, agents, turn: 0 }
    }

    /// A shopper's operations are the same on every call, and differ from those of other shoppers.
    #[test]
    fn plans_are_deterministic() {
        let (data, again) = (InitialData::new(Size::Small), InitialData::new(Size::Small));
        for traffic in Traffic::ALL {
            let plan = |data| -> Vec<Vec<Operation>> {
                (0..200).map(|number| shoppers(data, traffic, 4).operations(number)).collect()
            };
            let operations = plan(&data);
            assert!(operations == plan(&again));
            assert!(operations.windows(2).filter(|pair| pair[0] == pair[1]).count() < 5);
            let other_turn = Shoppers { turn: 1, ..shoppers(&data, traffic, 4) };
            assert_ne!(other_turn.operations(3), operations[3]);
        }
    }

    /// Shoppers search for 5.5 products on average, and put the traffic's share of these products into their carts.
    #[test]
    fn traffic_has_its_shares() {
        let data = InitialData::new(Size::Medium);
        for (traffic, share) in [(Traffic::Balanced, 0.25), (Traffic::ReadHeavy, 0.1), (Traffic::WriteHeavy, 0.9)] {
            let operations = (0..4000).flat_map(|number| shoppers(&data, traffic, 1).operations(number));
            let kinds: Vec<Kind> = operations.map(|operation| operation.kind()).collect();
            let count = |wanted: Kind| kinds.iter().filter(|kind| **kind == wanted).count() as f64;
            let searches = count(Kind::LookUp) + count(Kind::Find);
            let close = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 0.15;
            assert!(close(searches, 22_000.0) && close(count(Kind::Find), searches / 2.0));
            assert!(close(count(Kind::AddToCart), searches * share), "{traffic:?}");
            assert!(close(count(Kind::Checkout), count(Kind::CreateCart) * share), "{traffic:?}");
        }
    }

    /// No customer belongs to more than one agent.
    #[test]
    fn customers_are_divided_among_agents() {
        let data = InitialData::new(Size::Small);
        for number in 0..500 {
            for operation in shoppers(&data, Traffic::WriteHeavy, 7).operations(number) {
                if let Operation::Checkout { customer, .. } | Operation::Review(Review { customer, .. }) = operation {
                    assert_eq!(u64::from(customer) % 7, number % 7);
                    assert!((customer as usize) < data.customers.len());
                }
            }
        }
    }
}

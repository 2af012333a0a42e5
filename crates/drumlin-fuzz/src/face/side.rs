//! A database, its handles, and what it should hold.

use drumlin::{Config, Database, Keyspace, Snapshot};

use super::answers::must;
use super::calls::call;
use super::model::{Models, holds, model_bytes};
use super::places::{Place, Settings};
use crate::Script;

pub(super) const NAMES: [&str; 2] = ["first", "second"];

pub(super) struct Side {
    // In this order: the folder goes last.
    /// `None`: its last handle is on its way out.
    pub(super) db: Option<Database>,
    pub(super) keyspaces: Vec<Keyspace>,
    pub(super) models: Models,
    pub(super) snapshots: Vec<(Snapshot, Models, Vec<Keyspace>)>,
    pub(super) settings: Settings,
    pub(super) place: Place,
    /// The largest of its budgets so far.
    pub(super) budget_bytes: u64,
}

impl Side {
    pub(super) fn new(is_on_disk: bool, script: &mut Script<'_>) -> Side {
        let place = Place::new(is_on_disk);
        let mut settings = Settings::draw(script);
        let opened = call!("Config::open", settings.config(&place).open(place.path()));
        // The smallest budget does not do for every other setting.
        let db = match opened {
            Err(drumlin::Error::BudgetTooSmall { minimum_bytes, .. }) => {
                settings.memory_bytes = minimum_bytes;
                must(settings.config(&place).open(place.path()))
            }
            opened => must(opened),
        };
        let keyspaces = NAMES.map(|name| must(call!("Database::keyspace", db.keyspace(name)))).into();
        let budget_bytes = settings.memory_bytes;
        let (models, snapshots) = (Models::default(), Vec::new());
        Side { db: Some(db), keyspaces, models, snapshots, settings, place, budget_bytes }
    }

    pub(super) fn db(&self) -> &Database {
        self.db.as_ref().expect("open between two steps")
    }

    pub(super) fn config(&self) -> Config {
        self.settings.config(&self.place)
    }

    /// Everything committed is visible afterwards, also what a dropped future had begun.
    pub(super) fn settle(&self) {
        must(self.keyspaces[0].insert("settled", "x"));
        must(self.keyspaces[0].remove("settled"));
    }

    pub(super) fn check(&self) {
        assert!(self.is_as(&self.models), "rows are not as they should be");
    }

    pub(super) fn is_as(&self, models: &Models) -> bool {
        self.keyspaces.iter().zip(models).all(|(keyspace, model)| holds(keyspace, model))
    }

    /// Memory that its models take.
    pub(super) fn held_bytes(&self) -> u64 {
        let kept = self.snapshots.iter().map(|(_, models, _)| model_bytes(models));
        // A call copies the models once more.
        2 * model_bytes(&self.models) + kept.sum::<u64>()
    }
}

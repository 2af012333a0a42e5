//! One of the two databases of a sequence: its handles, and the rows that it must contain.

use drumlin::{Config, Database, Keyspace, Snapshot};

use super::answers::must;
use super::calls::call;
use super::model::{Models, holds, model_bytes};
use super::places::{Place, Settings};
use crate::Script;

pub(super) const NAMES: [&str; 2] = ["first", "second"];

pub(super) struct Peer {
    // The fields are dropped in this order, so the folder is dropped last.
    /// `None` while the database is being reopened.
    pub(super) db: Option<Database>,
    pub(super) keyspaces: Vec<Keyspace>,
    pub(super) models: Models,
    pub(super) snapshots: Vec<(Snapshot, Models, Vec<Keyspace>)>,
    /// The rows in the snapshot that is kept on disk.
    pub(super) kept: Option<Models>,
    pub(super) settings: Settings,
    pub(super) place: Place,
    /// The largest budget that the database has had so far.
    pub(super) budget_bytes: u64,
}

impl Peer {
    pub(super) fn new(is_on_disk: bool, script: &mut Script<'_>) -> Peer {
        let place = Place::new(is_on_disk);
        let mut settings = Settings::draw(script);
        let opened = call!("Config::open", settings.config(&place).open(place.path()));
        // The smallest budget is not enough for some settings.
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
        Peer { db: Some(db), keyspaces, models, snapshots, kept: None, settings, place, budget_bytes }
    }

    pub(super) fn db(&self) -> &Database {
        self.db.as_ref().expect("open between two steps")
    }

    pub(super) fn config(&self) -> Config {
        self.settings.config(&self.place)
    }

    /// Makes all earlier commits visible, including those of dropped futures, by committing once more.
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

    /// Returns the memory of this database's models, in bytes.
    pub(super) fn held_bytes(&self) -> u64 {
        let models = self.snapshots.iter().map(|(_, models, _)| models);
        // Count the models twice, because a call may copy them once.
        2 * model_bytes(&self.models) + models.chain(&self.kept).map(model_bytes).sum::<u64>()
    }
}

//! Whatever is damaged, all rows of the leaves that are not are rescued. `DRUMLIN_TEST_RESCUES` is the number of random
//! damages (default 60).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Rescue;
use super::extents::ExtentReader;
use super::images::{Image, Layer};
use super::rows::FoundRow;
use crate::db::Config;
use crate::error::Result;
use crate::format::extent::{Header, Kind};
use crate::format::{ExtentRef, KeyspaceId};
use crate::io::{Backend, OpenOptions, Persist};
use crate::store::damaged::DamagedStore;
use crate::sync::Random;
use crate::tree::node::{Leaf, RowValue};
use crate::txn::commit::Durability;

const FOLDER: &str = "/db";
const SEGMENT_BYTES: u64 = 256 << 10;

type Files = BTreeMap<PathBuf, Vec<u8>>;
type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn config(backend: &Arc<dyn Backend>) -> Config {
    Config::new()
        .memory(64 << 20)
        .page_bytes(1024)
        .segment_bytes(SEGMENT_BYTES)
        .log_segment_bytes(1 << 20)
        .checkpoint_log_bytes(64 << 20)
        .warm_start(false)
        .backend(Arc::clone(backend))
}

fn read_files(backend: &dyn Backend) -> Files {
    let mut files = Files::new();
    for folder in [PathBuf::from(FOLDER), Path::new(FOLDER).join("log")] {
        for path in backend.list(&folder).unwrap() {
            let Ok(file) = backend.open(&path, OpenOptions::default()) else { continue };
            let mut bytes = vec![0; file.len().unwrap() as usize];
            file.read_at(&mut bytes, 0).unwrap();
            files.insert(path, bytes);
        }
    }
    files
}

fn disk_of(files: &Files) -> Arc<dyn Backend> {
    let backend = crate::io::in_memory();
    backend.create_dir_all(&Path::new(FOLDER).join("log")).unwrap();
    for (path, bytes) in files {
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = backend.open(path, options).unwrap();
        file.write_at(bytes, 0, Persist::Later).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
    }
    backend
}

/// A closed database whose keyspaces were changed, loaded and cleared, with checkpoints in between.
fn sample() -> Result<Files> {
    let backend = crate::io::in_memory();
    let db = config(&backend).open(FOLDER)?;
    let mut random = Random(4);
    for round in 0..5u64 {
        for name in ["one", "two"] {
            let keyspace = db.keyspace(name)?;
            for _ in 0..1500 {
                let key = format!("row {:05}", random.below(4000));
                match random.below(5) {
                    0 => drop(keyspace.take(&key)?),
                    length => {
                        let value = format!("{round} ").repeat(length as usize * 20);
                        keyspace.insert_with(&key, value, Durability::Relaxed)?;
                    }
                }
            }
        }
        if round == 2 {
            let mut load = db.bulk_load("loaded")?;
            for number in 0..3000u64 {
                load.insert(format!("row {number:05}"), "loaded ".repeat(random.below(20) as usize))?;
            }
            load.finish()?;
        }
        if round == 3 {
            db.keyspace("loaded")?.remove_range("row 00500".."row 00900")?;
        }
        db.checkpoint()?;
    }
    db.close()?;
    Ok(read_files(&*backend))
}

/// An extent of the sample: its place, and the rows if it is a leaf of a page table.
struct Extent {
    extent: ExtentRef,
    kind: Kind,
    leaf: Option<(KeyspaceId, Rows)>,
}

fn rows_of(leaf: &Leaf<'_>) -> Rows {
    let row = |index| {
        let mut key = Vec::new();
        leaf.key_into(index, &mut key);
        match leaf.value(index) {
            RowValue::Inline(value) => Some((key, value.to_vec())),
            RowValue::Large(_) => None,
        }
    };
    (0..leaf.len()).filter_map(row).collect()
}

/// Returns all extents of an undamaged database that are in use, and all that are structures.
fn extents_of(files: &Files) -> Result<Vec<Extent>> {
    let backend = disk_of(files);
    let store = DamagedStore::open(&config(&backend).settings, Path::new(FOLDER))?;
    let reader = ExtentReader { file: Arc::clone(&store.file), database: store.database };
    let mut found = Vec::new();
    for keyspace in &store.keyspaces {
        let pages = keyspace.pages.table().expect("it is not damaged");
        for extent in pages.table.iter().filter_map(|(_, entry)| store.extent_of(entry)) {
            let (Header { kind, .. }, bytes) = reader.read_one(extent)?;
            let leaf = (kind == Kind::Leaf).then(|| (keyspace.entry.id, rows_of(&Leaf::new(&bytes))));
            found.push(Extent { extent, kind, leaf });
        }
    }
    crate::space::search::search_extents(&store.file, Some(store.database), |offset, header, _| {
        if !matches!(header.kind, Kind::Leaf | Kind::Inner | Kind::Value) {
            let segment_use = header.origin.segment_use;
            let address = crate::format::ExtentAddress::new(offset, header.stored_bytes as u64, segment_use);
            found.push(Extent { extent: ExtentRef { address, segment_use }, kind: header.kind, leaf: None });
        }
        Ok(())
    })?;
    Ok(found)
}

/// Describes all images that cover a key, for a failure.
fn images_of(rescue: &Rescue, id: KeyspaceId, key: &str) -> String {
    let key = key.as_bytes();
    let (mut text, source) = (String::new(), &rescue.sources.keyspaces[&id]);
    for layer in [Layer::TREE, Layer::LOADED] {
        for image in rescue.sources.images(source, layer).map(Result::unwrap) {
            if &*image.lower <= key && image.upper.as_deref().is_none_or(|upper| key < upper) {
                let Image { extent, timestamp, page, .. } = &image;
                let read = rescue.sources.extents.read_one(*extent).unwrap().1;
                let has = Leaf::new(&read).search(key).is_ok();
                text += &format!(
                    "\n  {layer:?} page {page} at {timestamp}, use {:#x}, {extent:?}: has it: {has}",
                    extent.segment_use.0
                );
            }
        }
    }
    let change = source.changes.as_ref().and_then(|changes| changes.get(key).unwrap());
    let change = change.map(|change| (u64::from_le_bytes(change[..8].try_into().unwrap()), change[8] as char));
    text + &format!("\n  changed: {change:?}, removed: {:?}", source.removed.len())
}

fn all_rows(rescue: &Rescue, damage: &str) -> BTreeMap<KeyspaceId, Rows> {
    let mut found: BTreeMap<KeyspaceId, Rows> = BTreeMap::new();
    for &id in rescue.by_name().values() {
        let mut rows = rescue.rows_of(id).unwrap();
        while let Some(row) = rows.next_row().unwrap() {
            if let FoundRow::Row(key, value) = row {
                let value = value.into_bytes(&rescue.sources).unwrap();
                assert!(found.entry(id).or_default().insert(key, value).is_none(), "{damage}: a row came twice");
            }
        }
    }
    found
}

/// The rows of every leaf that is not damaged are rescued, with inner nodes, values, superblocks, catalogues and tables
/// damaged at random, and the data file cut anywhere.
#[test]
fn all_rows_of_undamaged_leaves_are_rescued() {
    let files = sample().unwrap();
    let extents = extents_of(&files).unwrap();
    let data = Path::new(FOLDER).join("data");
    let sound = Rescue::open(&config(&disk_of(&files)), FOLDER, "/scratch").unwrap();
    let all = all_rows(&sound, "none");
    let (mut saved_count, mut lost_count, mut failures) = (0, 0, Vec::new());
    let seed_count = std::env::var("DRUMLIN_TEST_RESCUES").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    for seed in 0..seed_count {
        let mut random = Random(seed);
        let mut damaged = files.clone();
        let bytes = damaged.get_mut(&data).unwrap();
        let mut damage = format!("seed {seed}:");
        // The percentage of the extents of each kind that are damaged.
        let mut shares = BTreeMap::new();
        for kind in 1..=7u8 {
            let share = [0, 0, 0, 3, 30, 100][random.below(6) as usize];
            shares.insert(kind, if kind == Kind::Leaf as u8 { share.min(30) } else { share });
        }
        damage += &format!(" shares of extents: {shares:?}");
        for Extent { extent, kind, .. } in &extents {
            if random.below(100) < shares[&(*kind as u8)] {
                bytes[extent.address.start() as usize + 41] ^= 4;
            }
        }
        if random.below(3) == 0 {
            bytes[..64 << 10].fill(0);
            damage += ", no superblocks";
        }
        if random.below(2) == 0 {
            let cut = SEGMENT_BYTES as usize + random.below(bytes.len() as u64 - SEGMENT_BYTES) as usize;
            bytes.truncate(cut);
            damage += &format!(", cut to {cut} bytes");
        }
        let is_sound = |extent: &ExtentRef| {
            let (start, length) = (extent.address.start() as usize, extent.address.length() as usize);
            let original = &files[&data][start..start + length];
            // The padding after the last extent of the file may be cut off.
            bytes
                .get(start..)
                .is_some_and(|rest| rest.len() + 63 >= length && original.starts_with(&rest[..rest.len().min(length)]))
                && crate::format::extent::verify(&bytes[start..]).is_ok()
        };
        let sound: Vec<&Extent> = extents.iter().filter(|extent| is_sound(&extent.extent)).collect();
        let backend = disk_of(&damaged);
        let rescue = match Rescue::open(&config(&backend), FOLDER, "/scratch") {
            Ok(rescue) => rescue,
            Err(error) => panic!("{damage}: {error}"),
        };
        let found = all_rows(&rescue, &damage);
        let mut expected_count = 0;
        let mut wrong = None;
        for (id, rows) in sound.iter().filter_map(|extent| extent.leaf.as_ref()) {
            // A range may have been removed, and the leaf still have its rows.
            for (key, value) in rows.iter().filter(|(key, value)| all[id].get(*key) == Some(value)) {
                expected_count += 1;
                let row = found.get(id).and_then(|rows| rows.get(key));
                if row != Some(value) {
                    let (key, row) = (key.escape_ascii(), row.map(Vec::len));
                    let text = format!("{damage}: row {key} of keyspace {id} has {row:?} of {} bytes", value.len());
                    wrong = Some(text + &images_of(&rescue, *id, &key.to_string()));
                }
            }
        }
        failures.extend(wrong);
        saved_count += expected_count;
        lost_count += extents.iter().filter(|extent| extent.leaf.is_some()).count()
            - sound.iter().filter(|extent| extent.leaf.is_some()).count();
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    println!("{saved_count} rows of undamaged leaves, {lost_count} damaged leaves");
    assert!(saved_count > 1000 * seed_count && lost_count > 10 * seed_count as usize);
}

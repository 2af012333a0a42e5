//! Merges sorted runs into one tree.
//!
//! If there is not enough memory to merge all runs in one pass, groups of them are first merged into longer runs
//! (Knuth, *The Art of Computer Programming*, volume 3, 5.4.1, multiway merging). Runs are numbered in the order in
//! which their rows arrived. If several rows have the same key, the row of the latest run wins.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::packed_tree::PackedTree;
use super::rows::LoadedRows;
use crate::error::Result;
use crate::tree::node::RowValue;
use crate::txn::engine::Engine;
use crate::txn::values::MEDIUM_BYTES_MAX;

/// The next row of a run. The greatest head is the one with the smallest key. Among heads with equal keys, it is the
/// head of the latest run.
#[derive(PartialEq, Eq, Debug)]
struct Head {
    key: Vec<u8>,
    run: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Head) -> Ordering {
        other.key.cmp(&self.key).then(self.run.cmp(&other.run))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Head) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Adds the rows of the runs to a tree, using `memory_bytes` for reading. O(rows log runs). Each page of a run is read
/// once and then freed, so most of the tree reuses the space of the runs. Values of one chunk are copied; longer values
/// are moved without copying.
pub(super) fn merge(
    engine: &Engine,
    mut runs: Vec<LoadedRows>,
    memory_bytes: u64,
    into: &mut PackedTree,
) -> Result<()> {
    let run_bytes = memory_bytes as usize / runs.len().max(1);
    runs.iter_mut().for_each(|run| run.limit_memory(run_bytes));
    let mut heads = BinaryHeap::with_capacity(runs.len());
    for (run, rows) in runs.iter_mut().enumerate() {
        let mut head = Head { key: Vec::new(), run };
        if rows.step(&mut head.key)? {
            heads.push(head);
        }
    }
    while let Some(mut head) = heads.peek_mut() {
        let rows = &mut runs[head.run];
        let is_superseded = into.last_key() == Some(&head.key[..]);
        assert!(is_superseded || into.last_key().is_none_or(|last| last < &head.key[..]), "a run is not sorted");
        if !is_superseded {
            match rows.value() {
                RowValue::Inline(value) => into.push(engine, &head.key, value)?,
                RowValue::Large(reference) if reference.length <= MEDIUM_BYTES_MAX as u64 => {
                    into.push(engine, &head.key, &rows.take_medium(reference)?)?;
                }
                RowValue::Large(reference) => {
                    let reference = into.take_over(rows.pages(), reference)?;
                    into.push_reference(&head.key, reference)?;
                }
            }
        }
        if !rows.step(&mut head.key)? {
            PeekMut::pop(head);
        }
    }
    Ok(())
}

/// Merges runs in groups until at most `runs_max` are left. This is the number of runs that the memory can merge in one
/// pass.
pub(super) fn merge_to(
    engine: &Engine,
    mut runs: Vec<LoadedRows>,
    runs_max: usize,
    memory_bytes: u64,
    new_tree: impl Fn() -> PackedTree,
) -> Result<Vec<LoadedRows>> {
    assert!(runs_max >= 2, "{runs_max} runs are merged at a time");
    while runs.len() > runs_max {
        crate::coverage::mark!("sorted runs were merged more than once");
        let mut longer = Vec::with_capacity(runs.len().div_ceil(runs_max));
        let mut rest = runs.into_iter();
        loop {
            let group: Vec<LoadedRows> = rest.by_ref().take(runs_max).collect();
            if group.len() < 2 {
                longer.extend(group);
                break;
            }
            let mut tree = new_tree();
            merge(engine, group, memory_bytes, &mut tree)?;
            longer.push(tree.into_run()?);
        }
        runs = longer;
    }
    Ok(runs)
}

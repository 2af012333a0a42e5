//! Verifies kept snapshots: their catalogues, their page tables, and the pages that only they refer to.

use std::sync::Arc;

use super::pages::Verifier;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::space::PageSpace;
use crate::space::kept::KeptSnapshot;

/// Reads all kept snapshots of the database whose pages are in `verifier`'s pool, one after the other. Reports what is
/// corrupted.
///
/// # Errors
/// [`Error::BudgetTooSmall`] if the page tables of a snapshot do not fit into memory, and errors of reading.
pub(super) fn verify_kept_snapshots(verifier: &mut Verifier<'_>) -> Result<()> {
    let pool = verifier.pool;
    for kept in pool.space.kept.all() {
        let pages = match open(pool, &kept) {
            Ok(pages) => pages,
            Err(error @ (Error::Corrupted { .. } | Error::Io { .. })) => {
                let cost =
                    format!("the kept snapshot {:?}, or a part of it; everything else stays readable", kept.name);
                verifier.report.report_corruption(error, cost);
                continue;
            }
            Err(error) => return Err(error),
        };
        for pages in pages {
            let name = format!("{} of kept snapshot {}", pages.name(), kept.name);
            verifier.verify_pages(&pages, &name, true)?;
            verifier.find_lost_keys(&pages, &name)?;
        }
    }
    Ok(())
}

fn open(pool: &Pool, kept: &KeptSnapshot) -> Result<Vec<Arc<PageSpace>>> {
    let catalogue = kept.read_catalogue(&pool.space)?;
    let table_bytes = KeptSnapshot::table_bytes(&catalogue);
    pool.space.check_table_growth(table_bytes)?;
    pool.fit_frames(table_bytes)?;
    Ok(kept.open(&pool.space, &catalogue)?.into_iter().map(|(_, pages)| pages).collect())
}

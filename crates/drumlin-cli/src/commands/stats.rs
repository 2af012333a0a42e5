//! `drumlin stats`: shows the engine's statistics.

use clap::Args;
use drumlin::{Database, MemoryPart, Stats as Figures};
use serde::Serialize;
use serde_json::json;

use super::compact;
use crate::database::DatabaseArgs;
use crate::failure::Result;
use crate::terminal::{Output, figures, style};
use crate::text::harmless;

/// Show the engine's statistics: memory, device, log, space
///
/// Counters begin at zero when a database is opened, so the reads and writes shown are those of opening it.
#[derive(Debug, Args)]
pub(crate) struct Stats {
    #[command(flatten)]
    database: DatabaseArgs,
}

impl Stats {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let database = self.database.open_to_read()?;
        let stats = database.stats();
        let opening = database.opening();
        let copies = copies(&database);
        let figures = json!({
            "path": stats.path.display().to_string(),
            "opening_seconds": opening.duration.as_secs_f64(),
            "recovered_records": opening.recovered_records,
            "recovered_bytes": opening.recovered_bytes,
            "io_backend": stats.io_backend,
            "sync_method": stats.sync_method,
            "direct_io": stats.direct_io,
            "memory_budget_bytes": stats.memory_budget_bytes,
            "memory_used_bytes": stats.memory_used_bytes,
            "memory": stats.memory.iter().map(part).collect::<Vec<_>>(),
            "frame_bytes": stats.frame_bytes,
            "dirty_bytes": stats.dirty_bytes,
            "table_bytes": stats.table_bytes,
            "version_bytes": stats.version_bytes,
            "version_disk_bytes": stats.version_disk_bytes,
            "transaction_disk_bytes": stats.transaction_disk_bytes,
            "log_buffer_bytes": stats.log_buffer_bytes,
            "page_hits": stats.page_hits,
            "page_misses": stats.page_misses,
            "pages_warmed": stats.pages_warmed,
            "is_warming": stats.is_warming,
            "device_reads": stats.device_reads,
            "device_read_bytes": stats.device_read_bytes,
            "device_writes": stats.device_writes,
            "device_write_bytes": stats.device_write_bytes,
            "commits": stats.commits,
            "log_bytes": stats.log_bytes,
            "log_bytes_written": stats.log_bytes_written,
            "log_write_bytes": stats.log_write_bytes,
            "log_syncs": stats.log_syncs,
            "data_file_bytes": stats.data_file_bytes,
            "live_bytes": stats.live_bytes,
            "kept_snapshots": stats.kept_snapshots,
            "kept_snapshot_bytes": stats.kept_snapshot_bytes,
            "clones": stats.clones,
            "copies": copies,
            "segments": stats.segments,
            "free_segments": stats.free_segments,
            "segment_bytes": stats.segment_bytes,
            "checkpoints": stats.checkpoints,
            "last_checkpoint": stats.last_checkpoint.0,
            "durable": stats.durable.0,
            "visible": stats.visible.0,
            "snapshots": stats.snapshots,
            "failed": stats.failed,
        });
        output.print(&figures, || {
            let opened = format!(
                "{}, {} of log replayed ({})",
                figures::duration(opening.duration),
                figures::plural(opening.recovered_records, "record"),
                figures::bytes(opening.recovered_bytes)
            );
            table(&stats, &copies, &opened)
        })
    }
}

/// A copy in time that shares space with the rows of today.
#[derive(Serialize)]
struct Copy {
    kind: &'static str,
    name: String,
    /// The bytes that dropping it frees.
    exclusive_bytes: u64,
}

fn copies(database: &Database) -> Vec<Copy> {
    let kept = database.kept_snapshots().into_iter();
    let kept = kept.map(|kept| Copy { kind: "snapshot", name: kept.name, exclusive_bytes: kept.exclusive_bytes });
    let clones = database.clones().into_iter();
    kept.chain(clones.map(|clone| Copy { kind: "clone", name: clone.name, exclusive_bytes: clone.exclusive_bytes }))
        .collect()
}

fn part(part: &MemoryPart) -> serde_json::Value {
    json!({ "name": part.name, "used_bytes": part.used_bytes, "limit_bytes": part.limit_bytes })
}

fn table(stats: &Figures, copies: &[Copy], opened: &str) -> String {
    let bytes = figures::bytes;
    let count = figures::count;
    let mut lines = Vec::new();
    let mut line = |label: &str, text: String| {
        let dim = style::DIM;
        lines.push(format!("{dim}{label:<12}{dim:#} {text}"));
    };
    line("database", stats.path.display().to_string());
    line("opened in", opened.to_owned());
    let direct = if stats.direct_io { "direct" } else { "through the page cache" };
    line("device", format!("{} backend, {direct}, durable by {}", stats.io_backend, stats.sync_method));
    line(
        "",
        format!(
            "{} reads of {}, {} writes of {}",
            count(stats.device_reads),
            bytes(stats.device_read_bytes),
            count(stats.device_writes),
            bytes(stats.device_write_bytes)
        ),
    );
    line(
        "memory",
        format!("{} of a budget of {}", bytes(stats.memory_used_bytes), figures::budget(stats.memory_budget_bytes)),
    );
    line(
        "",
        format!(
            "frames {}, tables {}, versions {} and {} on disk, log {}",
            bytes(stats.frame_bytes),
            bytes(stats.table_bytes),
            bytes(stats.version_bytes),
            bytes(stats.version_disk_bytes),
            bytes(stats.log_buffer_bytes)
        ),
    );
    line(
        "data",
        format!(
            "{} live in a file of {}; {} of {} segments free",
            bytes(stats.live_bytes),
            bytes(stats.data_file_bytes),
            count(stats.free_segments),
            count(stats.segments)
        ),
    );
    let unused_bytes = stats.data_file_bytes.saturating_sub(stats.live_bytes);
    if let Some(advice) = compact::advice(stats.data_file_bytes, unused_bytes, &stats.path) {
        line("", advice);
    }
    for Copy { kind, name, exclusive_bytes } in copies {
        let freed = bytes(*exclusive_bytes);
        line("", format!("dropping the {kind} {} frees {freed}", harmless(&format!("{name:?}"))));
    }
    line("log", format!("{}, {} syncs", bytes(stats.log_bytes), count(stats.log_syncs)));
    line(
        "commits",
        format!(
            "{} since opening; visible up to {}, durable up to {}",
            count(stats.commits),
            count(stats.visible.0),
            count(stats.durable.0)
        ),
    );
    line("checkpoint", format!("of commit {}", count(stats.last_checkpoint.0)));
    if let Some(reason) = &stats.failed {
        let bad = style::BAD;
        lines.push(format!("{bad}no commits{bad:#}   {reason}"));
    }
    lines.join("\n")
}

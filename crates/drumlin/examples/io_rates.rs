//! Measures each backend: random 4 KiB direct reads per second (one at a time, and with 64 in flight), their processor
//! time, and sequential streams. Also prints the results of probing the folder. The file is read once before each
//! backend is measured, so that the drive's caches are equally warm for all of them.
//!
//! `cargo run --release --example io_rates [folder] [MiB]`

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drumlin_io::{
    AlignedBuffer, Backend, Driver, DriverOptions, File, FileRef, IoBackend, OpenOptions, Persist, Probe, ReadStream,
    StreamOptions,
};

const BLOCK_BYTES: usize = 4096;
const CHUNK_BYTES: usize = 1 << 20;
const RUN: Duration = Duration::from_secs(2);

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let file_mib: u64 = arguments.next().map_or(512, |text| text.parse().expect("a number of MiB"));
    let file_bytes = file_mib << 20;

    let backend = drumlin_io::backend(IoBackend::Auto)?;
    print!("{}", Probe::run(backend.as_ref(), &folder, Probe::DURATION)?.encode());

    let path = folder.join(format!("drumlin-io-rates-{}", std::process::id()));
    let result = measure(&path, file_bytes);
    std::fs::remove_file(&path)?;
    result
}

fn measure(path: &std::path::Path, file_bytes: u64) -> io::Result<()> {
    println!("{:10} {:>28} {:>12} {:>14}", "backend", "what", "per second", "CPU us each");
    for kind in [IoBackend::Portable, IoBackend::Uring] {
        let backend = match drumlin_io::backend(kind) {
            Ok(backend) => backend,
            Err(error) => {
                println!("{kind:?}: {error}");
                continue;
            }
        };
        let file = filled(backend.as_ref(), path, file_bytes)?;
        let mode = if file.is_direct() { "direct" } else { "buffered" };

        let mut buffer = AlignedBuffer::zeroed(BLOCK_BYTES);
        let mut offsets = Offsets::new(file_bytes);
        report(backend.name(), &format!("{mode}, blocking"), || {
            file.read_at(&mut buffer, offsets.next())?;
            Ok(1)
        })?;
        for depth in [1, 64] {
            let queue = backend.queue(depth)?;
            let mut spare: Vec<_> = (0..depth).map(|_| AlignedBuffer::zeroed(BLOCK_BYTES)).collect();
            let mut finished = Vec::new();
            report(backend.name(), &format!("{mode}, {depth} in flight"), || {
                while let Some(buffer) = spare.pop() {
                    queue.push_read(&file, offsets.next(), buffer, 0);
                }
                queue.wait(depth.div_ceil(2), &mut finished)?;
                let count = finished.len();
                for completion in finished.drain(..) {
                    completion.result?;
                    spare.push(completion.buffer);
                }
                Ok(count)
            })?;
        }
        for (request_bytes, requests) in [(BLOCK_BYTES, 1), (512 << 10, 1), (512 << 10, 5)] {
            let options = StreamOptions { request_bytes, requests };
            let driver = Driver::on(Arc::clone(&backend), DriverOptions::default())?;
            let stream_file = File::new(FileRef::clone(&file), driver.clone());
            let open = || ReadStream::open(&stream_file, 0..file_bytes, options);
            let mut stream = open()?;
            let label = format!("MiB, stream {requests} x {} KiB", request_bytes >> 10);
            let mut bytes = 0;
            report(backend.name(), &label, || {
                while bytes < CHUNK_BYTES {
                    match driver.block_on(stream.next_buffer())? {
                        Some(buffer) => bytes += buffer.len(),
                        None => stream = open()?,
                    }
                }
                let count = bytes / CHUNK_BYTES;
                bytes %= CHUNK_BYTES;
                Ok(count)
            })?;
        }
    }
    Ok(())
}

/// Opens the file, extends it if it is too short, and reads it once.
fn filled(backend: &dyn Backend, path: &std::path::Path, bytes: u64) -> io::Result<FileRef> {
    let options = OpenOptions { write: true, create: true, direct: true, ..OpenOptions::default() };
    let file = backend.open(path, options)?;
    let mut chunk = AlignedBuffer::zeroed(CHUNK_BYTES);
    for (index, byte) in chunk.iter_mut().enumerate() {
        *byte = ((index * index) >> 7) as u8;
    }
    for offset in (file.len()?..bytes).step_by(CHUNK_BYTES) {
        file.write_at(&chunk, offset, Persist::Later)?;
    }
    file.sync_all()?;
    for offset in (0..bytes).step_by(CHUNK_BYTES) {
        file.read_at(&mut chunk, offset)?;
    }
    Ok(file)
}

/// Repeats `work`, which returns the number of operations that it completed, and prints the rate of operations.
fn report(backend: &str, what: &str, mut work: impl FnMut() -> io::Result<usize>) -> io::Result<()> {
    let (started, cpu_before) = (Instant::now(), cpu_time());
    let mut count = 0;
    while started.elapsed() < RUN {
        count += work()?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let cpu_us = cpu_time().saturating_sub(cpu_before).as_secs_f64() * 1e6 / count as f64;
    println!("{backend:10} {what:>28} {:>12.0} {cpu_us:>14.2}", count as f64 / seconds);
    Ok(())
}

/// Returns the processor time that this process's threads have used so far, or zero if there is no /proc.
fn cpu_time() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// Generates random block offsets. A linear congruential generator is random enough to test a drive.
struct Offsets {
    state: u64,
    blocks: u64,
}

impl Offsets {
    fn new(file_bytes: u64) -> Offsets {
        Offsets { state: 1, blocks: file_bytes / BLOCK_BYTES as u64 }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 24) % self.blocks * BLOCK_BYTES as u64
    }
}

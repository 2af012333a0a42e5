//! Durable commits in a second, beside what the device can do.
//!
//! `cargo run --release --example log_rate -- <folder> [seconds] [committers,…] [streams,…]`

use std::any::Any;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use drumlin::io::{Backend, File, FileRef, OpenOptions, Persist, Queue, SyncMethod};
use drumlin::log_measure::{Course, commit_rate, raw_rate};
use rustix::io::{IoSlice, ReadWriteFlags, pwritev2};

#[derive(Debug)]
struct Plain(Instant);

#[derive(Debug)]
struct PlainFile {
    file: fs::File,
    path: PathBuf,
}

impl File for PlainFile {
    fn path(&self) -> &Path {
        &self.path
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), offset, bytes)?)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
    fn write_at(&self, buffer: &[u8], offset: u64, persist: Persist) -> io::Result<()> {
        if persist == Persist::Now(SyncMethod::DurableWrite) {
            let written = pwritev2(&self.file, &[IoSlice::new(buffer)], offset, ReadWriteFlags::DSYNC)?;
            return if written == buffer.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) };
        }
        self.file.write_all_at(buffer, offset)?;
        match persist {
            Persist::Now(SyncMethod::DataSync) => self.file.sync_data(),
            Persist::Now(_) => self.file.sync_all(),
            Persist::Later => Ok(()),
        }
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
    fn alignment(&self) -> usize {
        4096
    }
    fn is_direct(&self) -> bool {
        true
    }
    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Backend for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<FileRef> {
        let mut open = fs::OpenOptions::new();
        open.read(true).write(options.write).create(options.create).custom_flags(libc_direct());
        Ok(Arc::new(PlainFile { file: open.open(path)?, path: path.to_path_buf() }))
    }
    fn queue(&self, _depth: usize) -> io::Result<Box<dyn Queue>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect()
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        fs::File::open(path)?.sync_all()
    }
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
    fn random(&self) -> u64 {
        4
    }
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<std::thread::JoinHandle<()>> {
        std::thread::Builder::new().name(name.to_string()).spawn(body)
    }
}

fn libc_direct() -> i32 {
    rustix::fs::OFlags::DIRECT.bits() as i32
}

fn numbers(argument: Option<String>, default: &str) -> Vec<usize> {
    argument.unwrap_or(default.to_string()).split(',').map(|word| word.parse().expect("a number")).collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().expect("a folder"));
    let seconds: f64 = arguments.next().map_or(2.0, |word| word.parse().expect("seconds"));
    let committers = numbers(arguments.next(), "1,2,8,32");
    let streams = numbers(arguments.next(), "1,2");
    let backend: Arc<dyn Backend> = Arc::new(Plain(Instant::now()));
    for round in 1..=3 {
        let mut course = Course {
            dir: dir.clone(),
            sync: SyncMethod::DurableWrite,
            streams: 1,
            committers: 1,
            body_bytes: 100,
            duration: Duration::from_secs_f64(seconds),
        };
        let raw = raw_rate(&backend, &course).expect("raw rate").commits;
        println!("round {round}: raw {raw:8.0} durable writes/s");
        for &streams in &streams {
            for &committers in committers.iter().filter(|&&committers| committers >= streams) {
                course.streams = streams as u16;
                course.committers = committers;
                let rates = commit_rate(&backend, &course).expect("commit rate");
                println!(
                    "  {streams} streams {committers:3} committers: {:8.0} commits/s = {:.2} raw, {:8.0} writes/s",
                    rates.commits,
                    rates.commits / raw,
                    rates.syncs
                );
            }
        }
    }
}

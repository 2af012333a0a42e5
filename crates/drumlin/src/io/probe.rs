//! The probe: measures which sync method is the fastest in a given folder.
//!
//! It measures exactly the writes of a log: single durable writes of 4 KiB over blocks that already hold real zeros, so
//! that no write changes metadata. Each write is timed alone, since a mean over many hides the slow ones. The methods
//! take turns, so that other load on the machine affects them alike.
//!
//! All methods are durable by contract, so the one with the lowest median is chosen. On a file system in memory a sync
//! means nothing, and so do the figures; the probe says so.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::medium::Medium;
use super::{AlignedBuffer, Backend, File, FileRef, OpenOptions, Persist, SyncMethod};
use crate::format::BLOCK_BYTES;

const METHODS: [SyncMethod; 3] = [SyncMethod::DurableWrite, SyncMethod::DataSync, SyncMethod::FullSync];

/// Enough blocks that a drive does not see one block again and again, few enough to fill in no time.
const FILE_BLOCKS: u64 = 64;

/// More samples move neither the median nor the 99th percentile.
const SAMPLES_MAX: usize = 3000;

/// Even where the time is up: three of a slow drive's syncs still tell which method is the fastest.
const SAMPLES_MIN: usize = 3;

/// A round of one method before the next takes its turn.
const ROUND_WRITES: usize = 8;

/// The version of the text form.
const TEXT_VERSION: u32 = 1;

/// The measurements of one sync method.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MethodFigures {
    /// The method.
    pub method: SyncMethod,
    /// Half of the durable writes of 4 KiB took at most this long, in microseconds.
    pub median_us: f64,
    /// 99 of 100 took at most this long, in microseconds.
    pub p99_us: f64,
    /// `true` if system and file system have it. Where not, the figures are zero.
    pub supported: bool,
}

/// The result of probing a folder.
///
/// # Examples
/// ```no_run
/// use drumlin::internals::io::{IoBackend, Probe};
///
/// let backend = drumlin::internals::io::backend(IoBackend::Auto)?;
/// let probe = Probe::run(backend.as_ref(), "/var/lib/shop".as_ref(), Probe::DURATION)?;
/// println!("{} on {}: {}", probe.file_system, probe.device, probe.chosen);
/// for figures in &probe.methods {
///     println!("{}: median {:.0} us, p99 {:.0} us", figures.method, figures.median_us, figures.p99_us);
/// }
/// let text = probe.encode();
/// assert_eq!(Probe::decode(&text)?, probe);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Probe {
    /// The figures of each method.
    pub methods: Vec<MethodFigures>,
    /// The fastest method by its median.
    pub chosen: SyncMethod,
    /// The file system's kind: `ext4`, `xfs`.
    pub file_system: String,
    /// The mounted device, its number, and whether it has a volatile write cache.
    pub device: String,
    /// The options it is mounted with.
    pub mount_options: String,
    /// `true` if files bypass the page cache.
    pub direct: bool,
    /// Files live in memory (tmpfs, ramfs) or syncs are left out: whatever the figures say, nothing survives a power
    /// cut.
    pub tmpfs: bool,
    fingerprint: String,
}

impl Probe {
    /// The default duration of a probe.
    pub const DURATION: Duration = Duration::from_secs(1);

    /// Measures durable writes in `folder` for about `duration`, in a file that it removes again. Every method gets at
    /// least three writes, so a very slow device may take longer.
    ///
    /// # Errors
    /// Whatever the system reports: the folder is missing, full, or not to be written to.
    pub fn run(backend: &dyn Backend, folder: &Path, duration: Duration) -> io::Result<Probe> {
        let medium = Medium::of(backend, folder)?;
        let scratch = Scratch::create(backend, folder)?;
        let samples = measure(backend, scratch.file.as_ref(), duration)?;
        let methods: Vec<MethodFigures> = METHODS
            .into_iter()
            .zip(samples)
            .map(|(method, samples)| figures(scratch.file.as_ref(), method, samples))
            .collect();
        let chosen = choose(&methods);
        Ok(Probe {
            methods,
            chosen,
            fingerprint: medium.fingerprint(),
            file_system: medium.file_system,
            device: medium.device,
            mount_options: medium.mount_options,
            direct: scratch.file.is_direct(),
            tmpfs: medium.volatile,
        })
    }

    /// The file system, device and mount options that the figures hold for.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns `true` if `folder` is still on the medium that was measured; otherwise the probe has to run again.
    ///
    /// # Errors
    /// The operating system's error on the folder.
    pub fn is_current(&self, backend: &dyn Backend, folder: &Path) -> io::Result<bool> {
        Ok(Medium::of(backend, folder)?.fingerprint() == self.fingerprint)
    }

    /// The text form, to be stored: lines of `key = value`.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        let mut line = |key: &str, value: &str| {
            writeln!(text, "{key} = {}", value.replace('\n', " ")).expect("a string takes any text");
        };
        line("version", &TEXT_VERSION.to_string());
        line("chosen", self.chosen.name());
        line("file_system", &self.file_system);
        line("device", &self.device);
        line("mount_options", &self.mount_options);
        line("direct", if self.direct { "yes" } else { "no" });
        line("tmpfs", if self.tmpfs { "yes" } else { "no" });
        line("fingerprint", &self.fingerprint);
        for figures in &self.methods {
            let supported = if figures.supported { "supported" } else { "unsupported" };
            let value = format!("{supported}, median {} us, p99 {} us", figures.median_us, figures.p99_us);
            line(figures.method.name(), &value);
        }
        text
    }

    /// Returns `true` if these bytes begin like the text form.
    pub(crate) fn is_text(bytes: &[u8]) -> bool {
        bytes.starts_with(b"version = ")
    }

    /// Reads the text form. Keys it does not know are passed over.
    ///
    /// # Errors
    /// `InvalidData`, naming what is missing or wrong; the probe should then run again.
    pub fn decode(text: &str) -> io::Result<Probe> {
        let field = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            let found = lines.find(|(name, _)| name.trim() == key);
            found.map(|(_, value)| value.trim()).ok_or_else(|| invalid(&format!("{key} is missing")))
        };
        let flag = |key: &str| match field(key)? {
            "yes" => Ok(true),
            "no" => Ok(false),
            other => Err(invalid(&format!("{key} is {other:?}, neither yes nor no"))),
        };
        let version = field("version")?;
        if version != TEXT_VERSION.to_string() {
            return Err(invalid(&format!("version {version:?} is not {TEXT_VERSION}")));
        }
        let chosen = field("chosen")?;
        let methods = METHODS.into_iter().map(|method| decode_figures(method, field(method.name())?));
        Ok(Probe {
            methods: methods.collect::<io::Result<_>>()?,
            chosen: METHODS
                .into_iter()
                .find(|method| method.name() == chosen)
                .ok_or_else(|| invalid(&format!("{chosen:?} is no sync method")))?,
            file_system: field("file_system")?.to_owned(),
            device: field("device")?.to_owned(),
            mount_options: field("mount_options")?.to_owned(),
            direct: flag("direct")?,
            tmpfs: flag("tmpfs")?,
            fingerprint: field("fingerprint")?.to_owned(),
        })
    }
}

fn decode_figures(method: SyncMethod, value: &str) -> io::Result<MethodFigures> {
    let wrong = || invalid(&format!("{method} has the figures {value:?}"));
    let parts: Vec<&str> = value.split(", ").collect();
    let &[supported, median, p99] = &parts[..] else { return Err(wrong()) };
    let number = |text: &str, prefix: &str| {
        let digits = text.strip_prefix(prefix).and_then(|text| text.strip_suffix(" us")).ok_or_else(wrong)?;
        digits.parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(wrong)
    };
    let supported = match supported {
        "supported" => true,
        "unsupported" => false,
        _ => return Err(wrong()),
    };
    Ok(MethodFigures { method, supported, median_us: number(median, "median ")?, p99_us: number(p99, "p99 ")? })
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not the text of a probe: {what}"))
}

/// The file that is written to; removed when dropped.
struct Scratch<'a> {
    backend: &'a dyn Backend,
    path: PathBuf,
    file: FileRef,
}

impl Scratch<'_> {
    fn create<'a>(backend: &'a dyn Backend, folder: &Path) -> io::Result<Scratch<'a>> {
        let path = folder.join(format!("probe-{:016x}.tmp", backend.random()));
        let options = OpenOptions { write: true, create_new: true, direct: true, ..OpenOptions::default() };
        let file = backend.open(&path, options)?;
        let scratch = Scratch { backend, path, file };
        let zeros = AlignedBuffer::zeroed(FILE_BLOCKS as usize * BLOCK_BYTES);
        scratch.file.allocate(0, zeros.len() as u64)?;
        scratch.file.write_at(&zeros, 0, Persist::Now(SyncMethod::FullSync))?;
        Ok(scratch)
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.backend.remove(&self.path) {
            log::warn!("removing {}: {error}", self.path.display());
        }
    }
}

/// The durations of single durable writes by each method.
fn measure(backend: &dyn Backend, file: &dyn File, duration: Duration) -> io::Result<[Vec<Duration>; 3]> {
    let mut samples = [const { Vec::new() }; 3];
    let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
    let mut writes: u64 = 0;
    let deadline = backend.now() + duration;
    loop {
        for (method, samples) in METHODS.into_iter().zip(&mut samples) {
            for _ in 0..ROUND_WRITES {
                block[..8].copy_from_slice(&writes.to_le_bytes());
                let offset = writes % FILE_BLOCKS * BLOCK_BYTES as u64;
                writes += 1;
                let started = backend.now();
                file.write_at(&block, offset, Persist::Now(method))?;
                samples.push(backend.now() - started);
                if backend.now() >= deadline && samples.len() >= SAMPLES_MIN {
                    break;
                }
            }
        }
        if backend.now() >= deadline || samples[0].len() >= SAMPLES_MAX {
            return Ok(samples);
        }
    }
}

fn figures(file: &dyn File, method: SyncMethod, mut samples: Vec<Duration>) -> MethodFigures {
    if !file.supports(method) {
        return MethodFigures { method, median_us: 0.0, p99_us: 0.0, supported: false };
    }
    samples.sort_unstable();
    let at = |permille: usize| samples[(samples.len() * permille / 1000).min(samples.len() - 1)];
    let microseconds = |sample: Duration| (sample.as_secs_f64() * 1e7).round() / 10.0;
    MethodFigures { method, median_us: microseconds(at(500)), p99_us: microseconds(at(990)), supported: true }
}

/// The fastest; of equals, the one that asks least of the system.
fn choose(methods: &[MethodFigures]) -> SyncMethod {
    let supported = methods.iter().filter(|figures| figures.supported);
    let fastest = supported.min_by(|left, right| left.median_us.total_cmp(&right.median_us));
    fastest.map_or(SyncMethod::FullSync, |figures| figures.method)
}

#[cfg(test)]
mod tests {
    use super::super::select::select;
    use super::super::tests::TestFolder;
    use super::super::{IoBackend, in_memory};
    use super::*;

    /// In a fraction of a second it measures all methods, chooses one of them and leaves nothing behind.
    #[test]
    fn a_folder_is_probed() {
        let place = TestFolder::new(select(IoBackend::Portable).unwrap());
        let probe = Probe::run(place.backend.as_ref(), place.folder(), Duration::from_millis(100)).unwrap();
        assert_eq!(probe.methods.len(), 3);
        for figures in probe.methods.iter().filter(|figures| figures.supported) {
            assert!(figures.median_us > 0.0 && figures.p99_us >= figures.median_us, "{figures:?}");
            assert!(
                figures.median_us >= probe.methods.iter().find(|other| other.method == probe.chosen).unwrap().median_us
            );
        }
        assert!(place.backend.list(place.folder()).unwrap().is_empty(), "the scratch file is gone");
        assert!(probe.is_current(place.backend.as_ref(), place.folder()).unwrap());
        let elsewhere = Probe { fingerprint: "xfs on /dev/other 8:1".to_owned(), ..probe.clone() };
        assert!(!elsewhere.is_current(place.backend.as_ref(), place.folder()).unwrap());
        assert_eq!(Probe::decode(&probe.encode()).unwrap(), probe);
    }

    #[test]
    fn memory_is_told_from_a_medium() {
        let place = TestFolder::new(in_memory());
        let probe = Probe::run(place.backend.as_ref(), place.folder(), Duration::ZERO).unwrap();
        assert!(probe.tmpfs && !probe.direct);
        assert_eq!(probe.file_system, "memory");
    }

    #[test]
    fn the_fastest_supported_method_is_chosen() {
        let figures = |method, median_us, supported| MethodFigures { method, median_us, p99_us: 0.0, supported };
        let mut methods = vec![
            figures(SyncMethod::DurableWrite, 0.0, false),
            figures(SyncMethod::DataSync, 50.0, true),
            figures(SyncMethod::FullSync, 40.0, true),
        ];
        assert_eq!(choose(&methods), SyncMethod::FullSync);
        methods[0] = figures(SyncMethod::DurableWrite, 40.0, true);
        assert_eq!(choose(&methods), SyncMethod::DurableWrite);
    }

    #[test]
    fn a_text_that_is_wrong_is_refused() {
        let place = TestFolder::new(in_memory());
        let text = Probe::run(place.backend.as_ref(), place.folder(), Duration::ZERO).unwrap().encode();
        assert!(Probe::decode(&format!("{text}\nunknown = field\n\nno field\n")).is_ok());
        for (from, to) in [
            ("version = 1", "version = 2"),
            ("chosen = ", "chosen = hope, not "),
            ("direct = no", "direct = maybe"),
            ("fingerprint", "print"),
            ("supported, ", "supported"),
            ("median ", "median x"),
            (" us", " ms"),
        ] {
            let error = Probe::decode(&text.replace(from, to)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{from} -> {to}");
        }
        assert!(Probe::decode("").is_err());
    }
}

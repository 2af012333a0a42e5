//! The probe measures the sync methods in a folder and chooses one.
//!
//! It measures exactly the writes of a log: single durable writes of 4 KiB over blocks that are already filled with
//! zeros, so no write changes metadata. Each write is timed separately, because a mean over many would hide slow
//! outliers. The methods take turns, so other load on the machine affects all of them equally.
//!
//! By contract, every method makes bytes durable. The probe chooses the first method of [`METHODS`], unless a later one
//! is faster by more than the noise of the measurement: see [`choose`]. On a file system in memory, syncs and figures
//! mean nothing, and the probe reports that.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::medium::Medium;
use super::{AlignedBuffer, Backend, BackendFile, FileRef, OpenOptions, Persist, SyncMethod};
use crate::BLOCK_BYTES;

/// The methods in order of preference. A durable write is one request, which a drive may complete without flushing the
/// rest of its cache. `fdatasync` flushes the whole cache. `fsync` also writes the file's timestamps first, usually
/// through a journal.
const METHODS: [SyncMethod; 3] = [SyncMethod::DurableWrite, SyncMethod::DataSync, SyncMethod::FullSync];

/// The size of the file in blocks. It is large enough that the drive does not write the same block over and over, and
/// small enough that the file is filled quickly.
const FILE_BLOCKS: u64 = 64;

/// The maximum number of samples. More samples would change neither the median nor the 99th percentile.
const SAMPLES_MAX: usize = 3000;

/// The minimum number of samples, which are taken even if the time is up. They suffice for figures, but not for a
/// choice.
const SAMPLES_MIN: usize = 3;

/// The number of writes by one method before the next method's turn.
const ROUND_WRITES: usize = 8;

/// The version of the text format of [`Probe::encode`].
const TEXT_VERSION: u32 = 1;

/// The measurements of one sync method.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MethodFigures {
    /// The measured method.
    pub method: SyncMethod,
    /// The median duration of a durable write of 4 KiB, in microseconds.
    pub median_us: f64,
    /// The 99th percentile of these durations, in microseconds.
    pub p99_us: f64,
    /// Set if the system and the file system support the method. If they don't, the figures are zero.
    pub supported: bool,
}

/// The result of probing a folder.
///
/// # Examples
/// ```no_run
/// use drumlin_io::{IoBackend, Probe};
///
/// let backend = drumlin_io::backend(IoBackend::Auto)?;
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
    /// The method to use in this folder: a durable write, unless that is unsupported or a different method is faster by
    /// more than the noise.
    pub chosen: SyncMethod,
    /// The kind of the file system: `ext4`, `xfs`.
    pub file_system: String,
    /// The mounted device, its number, and whether it has a volatile write cache.
    pub device: String,
    /// The mount options.
    pub mount_options: String,
    /// Set if files bypass the page cache.
    pub direct: bool,
    /// Set if files are in memory (tmpfs, ramfs) or syncs are skipped: whatever the figures, no file survives a power
    /// cut.
    pub tmpfs: bool,
    fingerprint: String,
}

impl Probe {
    /// The default duration of a probe.
    pub const DURATION: Duration = Duration::from_secs(1);

    /// Measures durable writes for about `duration`, in a temporary file in `folder`. Each method writes at least three
    /// times, so a very slow device may take longer.
    ///
    /// # Errors
    /// Any error that the system reports: the folder is missing, full, or not writable.
    pub fn run(backend: &dyn Backend, folder: &Path, duration: Duration) -> io::Result<Probe> {
        let medium = Medium::of(backend, folder)?;
        let scratch = Scratch::create(backend, folder)?;
        let mut samples = measure(backend, scratch.file.as_ref(), duration)?;
        samples.iter_mut().for_each(|samples| samples.sort_unstable());
        let is_supported = |method| scratch.file.supports(method);
        let measured = METHODS.into_iter().zip(&samples);
        Ok(Probe {
            methods: measured.clone().map(|(method, samples)| figures(method, samples, is_supported(method))).collect(),
            chosen: choose(measured.filter(|(method, _)| is_supported(*method))),
            fingerprint: medium.fingerprint(),
            file_system: medium.file_system,
            device: medium.device,
            mount_options: medium.mount_options,
            direct: scratch.file.is_direct(),
            tmpfs: medium.volatile,
        })
    }

    /// Returns what this process has measured with the same backend on the same device and file system with the same
    /// mount options. If there is nothing yet, [measures](Probe::run).
    ///
    /// # Errors
    /// Those of [`run`](Probe::run).
    pub fn run_once(backend: &dyn Backend, folder: &Path, duration: Duration) -> io::Result<Probe> {
        static MEASURED: Mutex<Vec<(&str, Probe)>> = Mutex::new(Vec::new());
        let fingerprint = Medium::of(backend, folder)?.fingerprint();
        let measured = || MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |(name, probe): &&(&str, Probe)| *name == backend.name() && probe.fingerprint == fingerprint;
        if let Some((_, probe)) = measured().iter().find(is_same) {
            return Ok(probe.clone());
        }
        // Other folders, which may be on other devices, are measured at the same time.
        let probe = Probe::run(backend, folder, duration)?;
        measured().push((backend.name(), probe.clone()));
        Ok(probe)
    }

    /// Returns the file system, device and mount options for which the figures hold.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns `true` if `folder` is still on the device that was measured. If not, rerun the probe.
    ///
    /// # Errors
    /// The operating system's error if it cannot describe the folder.
    pub fn is_current(&self, backend: &dyn Backend, folder: &Path) -> io::Result<bool> {
        Ok(Medium::of(backend, folder)?.fingerprint() == self.fingerprint)
    }

    /// Encodes the probe as text that can be stored: lines of `key = value`.
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

    /// Returns `true` if `bytes` start like an encoded probe.
    pub fn is_text(bytes: &[u8]) -> bool {
        bytes.starts_with(b"version = ")
    }

    /// Parses an encoded probe. Ignores unknown keys.
    ///
    /// # Errors
    /// `InvalidData` if a field is missing or wrong. The error names the field. In this case, rerun the probe.
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

/// A temporary file, filled with zeros. Dropping this value removes the file.
pub(crate) struct Scratch<'a> {
    backend: &'a dyn Backend,
    path: PathBuf,
    file: FileRef,
}

impl Scratch<'_> {
    pub(crate) fn create<'a>(backend: &'a dyn Backend, folder: &Path) -> io::Result<Scratch<'a>> {
        let path = folder.join(format!("probe-{:016x}.tmp", backend.random()));
        let options = OpenOptions { write: true, create_new: true, direct: true, ..OpenOptions::default() };
        let file = backend.open(&path, options)?;
        let scratch = Scratch { backend, path, file };
        let zeros = AlignedBuffer::zeroed(FILE_BLOCKS as usize * BLOCK_BYTES);
        scratch.file.allocate(0, zeros.len() as u64)?;
        scratch.file.write_at(&zeros, 0, Persist::Now(SyncMethod::FullSync))?;
        Ok(scratch)
    }

    pub(crate) fn file(&self) -> &FileRef {
        &self.file
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.backend.remove(&self.path) {
            log::warn!("removing {}: {error}", self.path.display());
        }
    }
}

/// Measures single durable writes by each method. Returns the durations of each method's writes, in the order of
/// [`METHODS`].
fn measure(backend: &dyn Backend, file: &dyn BackendFile, duration: Duration) -> io::Result<[Vec<Duration>; 3]> {
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

/// Returns the figures of sorted samples.
fn figures(method: SyncMethod, samples: &[Duration], supported: bool) -> MethodFigures {
    if !supported {
        return MethodFigures { method, median_us: 0.0, p99_us: 0.0, supported };
    }
    let at = |permille: usize| samples[(samples.len() * permille / 1000).min(samples.len() - 1)];
    let microseconds = |sample: Duration| (sample.as_secs_f64() * 1e7).round() / 10.0;
    MethodFigures { method, median_us: microseconds(at(500)), p99_us: microseconds(at(990)), supported }
}

/// Chooses from `methods`, which are in order of preference and have sorted samples. Chooses the first, unless a later
/// one is faster by more than the noise. Without this rule, the choice between methods of equal speed would be random,
/// and two databases in the same folder could differ.
fn choose<'s>(methods: impl Iterator<Item = (SyncMethod, &'s Vec<Duration>)>) -> SyncMethod {
    let chosen = methods.reduce(|preferred, other| {
        let (expected, offered) = (median_bounds(preferred.1), median_bounds(other.1));
        let is_faster = expected.zip(offered).is_some_and(|(expected, offered)| offered.1 < expected.0);
        if is_faster { other } else { preferred }
    });
    chosen.map_or(SyncMethod::FullSync, |(method, _)| method)
}

/// Returns the confidence interval of the median of sorted samples.
///
/// Each sample is below the true median with a probability of one half. So the number of samples below the true median
/// has the mean n/2 and the standard deviation √n/2. In 997 of 1,000 measurements, the true median lies between the
/// samples with the ranks n/2 ± 3·√n/2. With fewer than nine samples, these ranks don't exist, and the result is
/// `None`.
fn median_bounds(samples: &[Duration]) -> Option<(Duration, Duration)> {
    let count = samples.len() as f64;
    let lowest = ((count - 3.0 * count.sqrt()) / 2.0).floor();
    (!samples.is_empty() && lowest >= 0.0).then(|| {
        let lowest = lowest as usize;
        (samples[lowest], samples[samples.len() - 1 - lowest])
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestFolder;
    use super::super::{IoBackend, in_memory};
    use super::*;
    use crate::backend::select::select;

    /// A medium is measured once: another measurement of it would take an hour here.
    #[test]
    fn a_medium_is_measured_once() {
        let place = TestFolder::new(select(IoBackend::Portable).unwrap());
        let first = Probe::run_once(place.backend.as_ref(), place.folder(), Duration::ZERO).unwrap();
        let other = TestFolder::new(select(IoBackend::Portable).unwrap());
        let second = Probe::run_once(other.backend.as_ref(), other.folder(), Duration::from_secs(3600)).unwrap();
        assert_eq!(first, second);
    }

    /// A fraction of a second is enough to measure all methods and choose one. No file is left in the folder.
    #[test]
    fn a_folder_is_probed() {
        let place = TestFolder::new(select(IoBackend::Portable).unwrap());
        let probe = Probe::run(place.backend.as_ref(), place.folder(), Duration::from_millis(100)).unwrap();
        assert_eq!(probe.methods.len(), 3);
        for figures in probe.methods.iter().filter(|figures| figures.supported) {
            assert!(figures.median_us > 0.0 && figures.p99_us >= figures.median_us, "{figures:?}");
            assert!(figures.method != probe.chosen || figures.supported);
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

    /// Returns samples spread evenly around a median, by up to `spread_percent` of it on either side.
    fn samples(median_us: u64, spread_percent: u64, count: u64) -> Vec<Duration> {
        let spread_us = median_us * spread_percent / 100;
        let sample = |at| Duration::from_micros(median_us - spread_us + 2 * spread_us * at / (count - 1));
        (0..count).map(sample).collect()
    }

    fn chosen(samples: &[Vec<Duration>; 3]) -> SyncMethod {
        choose(METHODS.into_iter().zip(samples))
    }

    /// If medians differ by less than the noise of their samples, the preferred method is chosen, even if a different
    /// one has the lowest median. These medians were measured on a single drive.
    #[test]
    fn noise_chooses_no_method() {
        let medians = [[3994, 3804, 3693], [3693, 3804, 3994], [3804, 3994, 3693], [3994, 3693, 3804]];
        for medians in medians {
            let samples = medians.map(|median| samples(median, 20, 27));
            assert_eq!(chosen(&samples), SyncMethod::DurableWrite, "{medians:?}");
        }
    }

    /// The bounds of a median are the samples at the computed ranks.
    #[test]
    fn the_median_lies_between_its_bounds() {
        let microseconds = |from: u64, to: u64| (Duration::from_micros(from), Duration::from_micros(to));
        let counted = |count: u64| (0..count).map(Duration::from_micros).collect::<Vec<_>>();
        assert_eq!(median_bounds(&counted(0)), None);
        assert_eq!(median_bounds(&counted(8)), None);
        assert_eq!(median_bounds(&counted(9)), Some(microseconds(0, 8)));
        // The ranks are 100/2 ± 3·10/2.
        assert_eq!(median_bounds(&counted(100)), Some(microseconds(35, 64)));
        assert_eq!(median_bounds(&counted(10_000)), Some(microseconds(4850, 5149)));
    }

    /// A method is chosen if it beats all preferred methods by more than the noise, and no later method in turn beats
    /// it by more than the noise.
    #[test]
    fn a_method_that_is_surely_faster_is_chosen() {
        let of = |medians: [u64; 3], count| chosen(&medians.map(|median| samples(median, 20, count)));
        assert_eq!(of([8000, 4000, 7900], 27), SyncMethod::DataSync);
        assert_eq!(of([8000, 4000, 3900], 27), SyncMethod::DataSync, "of equals, the preferred");
        assert_eq!(of([8000, 7900, 4000], 27), SyncMethod::FullSync);
        assert_eq!(of([8000, 4000, 2000], 27), SyncMethod::FullSync);
        assert_eq!(of([4000, 3990, 3700], 2000), SyncMethod::FullSync, "many samples tell small differences");
        assert_eq!(of([8000, 4000, 2000], 8), SyncMethod::DurableWrite, "so few samples tell none");
    }

    /// Methods that the system does not support are not chosen.
    #[test]
    fn one_method_is_there_at_least() {
        assert_eq!(choose([(SyncMethod::DataSync, &samples(4000, 20, 27))].into_iter()), SyncMethod::DataSync);
        assert_eq!(choose([].into_iter()), SyncMethod::FullSync);
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

//! A drive with a volatile write cache, and every state in which a power cut may leave it.
//!
//! The drive serves reads and writes, and records writes, flushes and acknowledgements in a single order. From the
//! record, the rig can rebuild the drive in any state in which a cut at any moment may leave it.
//!
//! Fault model. A write is certain once it has ended and a flush that began afterwards has completed. A write with the
//! *forced unit access* flag is certain as soon as it ends. Every other write may survive, be lost, or be torn: then
//! each of its 512-byte sectors may survive or be lost. With [`Loss::None`] the drive's cache survives. The host's page
//! cache never survives: data that was not written to the drive is always lost.
//!
//! The block that holds a file system's own superblock is never torn. Ext4 and btrfs rely on that, and drives with
//! sectors of 4 KiB guarantee it. Xfs relies on more: a metadata block that arrived in part can fail its checksum
//! during recovery, and then the file system can't be mounted. So if a file system does not survive a state, the rig
//! recreates that state with [sectors](Sector) of 4 KiB everywhere.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

use drumlin_testing::Random;
use serde::{Deserialize, Serialize};

pub const BLOCK: usize = 4096;
pub const SECTOR: usize = 512;

type Block = [u8; BLOCK];

/// The contents of a drive. Blocks that were never written read as zeros.
#[derive(Clone, Default, Debug)]
pub struct Image {
    blocks: HashMap<u64, Arc<Block>>,
}

impl Image {
    pub fn read(&self, offset: u64, bytes: &mut [u8]) {
        each_block(offset, bytes.len(), |block, within, range| match self.blocks.get(&block) {
            Some(held) => {
                let length = range.len();
                bytes[range].copy_from_slice(&held[within..within + length]);
            }
            None => bytes[range].fill(0),
        });
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        each_block(offset, bytes.len(), |block, within, range| {
            let held = self.blocks.entry(block).or_insert_with(|| Arc::new([0; BLOCK]));
            Arc::make_mut(held)[within..within + range.len()].copy_from_slice(&bytes[range]);
        });
    }
}

/// Calls `each` for every block touched by a request, with the block's number, the offset within the block, and the
/// range within the request.
fn each_block(offset: u64, length: usize, mut each: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < length {
        let at = offset + done as u64;
        let within = (at % BLOCK as u64) as usize;
        let end = length.min(done + BLOCK - within);
        each(at / BLOCK as u64, within, done..end);
        done = end;
    }
}

/// A request to the drive, or an acknowledgement.
#[derive(Clone, Debug)]
pub enum Event {
    Write { offset: u64, bytes: Arc<[u8]>, forced: bool },
    Flush,
    Acked(u64),
}

impl Event {
    /// Returns the acknowledgement's value, or `None` if the event is a request.
    pub fn acked(&self) -> Option<u64> {
        if let Event::Acked(what) = self { Some(*what) } else { None }
    }
}

/// The initial contents of a drive, and all subsequent events.
#[derive(Clone, Default, Debug)]
pub struct History {
    pub start: Image,
    pub events: Vec<Event>,
}

impl History {
    /// Returns the acknowledgements before a moment.
    pub fn acked(&self, moment: usize) -> Vec<u64> {
        self.events[..moment].iter().filter_map(Event::acked).collect()
    }

    /// Returns the moment after the first acknowledgement with the value `what`.
    pub fn moment_of(&self, what: u64) -> Option<usize> {
        self.events.iter().position(|event| event.acked() == Some(what)).map(|at| at + 1)
    }

    pub fn written_bytes(&self) -> usize {
        let written = |event: &Event| if let Event::Write { bytes, .. } = event { bytes.len() } else { 0 };
        self.events.iter().map(written).sum()
    }
}

/// The drive, with its history.
#[derive(Default, Debug)]
pub struct Drive {
    now: Image,
    history: History,
}

impl Drive {
    pub fn new(start: Image) -> Drive {
        Drive { now: start.clone(), history: History { start, events: Vec::new() } }
    }

    pub fn read(&self, offset: u64, bytes: &mut [u8]) {
        self.now.read(offset, bytes);
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8], forced: bool) {
        self.now.write(offset, bytes);
        self.history.events.push(Event::Write { offset, bytes: bytes.into(), forced });
    }

    pub fn flush(&mut self) {
        self.history.events.push(Event::Flush);
    }

    pub fn report(&mut self, what: u64) {
        self.history.events.push(Event::Acked(what));
    }

    pub fn moment(&self) -> usize {
        self.history.events.len()
    }

    pub fn events(&self) -> &[Event] {
        &self.history.events
    }

    pub fn into_parts(self) -> (Image, History) {
        (self.now, self.history)
    }
}

/// The effect of a cut on the uncertain writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// The drive's cache is retained.
    None,
    /// All uncertain writes are lost.
    All,
    /// Each uncertain write either survives or is lost.
    Some,
    /// Each uncertain write survives, is lost or is torn. Few survive.
    TornFew,
    /// Each uncertain write survives, is lost or is torn. Most survive.
    TornMost,
}

/// The size of the sectors that are written atomically.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sector {
    /// 512 bytes.
    Small,
    /// 4 KiB.
    Large,
}

impl Loss {
    /// Returns `true` if a cut may tear writes: some sectors of a write survive and others are lost.
    pub fn tears(self) -> bool {
        matches!(self, Loss::TornFew | Loss::TornMost)
    }

    /// The effects of a cut on a drive that loses its cache.
    pub const CACHE_LOST: [Loss; 4] = [Loss::All, Loss::Some, Loss::TornFew, Loss::TornMost];
}

/// Walks through a history and cuts the power at ascending moments.
#[derive(Debug)]
pub struct Cutter<'h> {
    history: &'h History,
    /// The drive's contents after all writes up to the last flush.
    certain: Image,
    /// The number of events in `certain`.
    certain_events: usize,
}

impl<'h> Cutter<'h> {
    pub fn new(history: &'h History) -> Cutter<'h> {
        Cutter { history, certain: history.start.clone(), certain_events: 0 }
    }

    /// Returns the drive after a cut before the event with index `moment`. That event may have begun.
    pub fn cut(&mut self, moment: usize, loss: Loss, sector: Sector, random: &mut Random) -> Image {
        assert!(moment >= self.certain_events, "moments ascend");
        let events = &self.history.events;
        let last_flush = events[self.certain_events..moment].iter().rposition(|event| matches!(event, Event::Flush));
        if let Some(last_flush) = last_flush {
            let end = self.certain_events + last_flush + 1;
            for event in &events[self.certain_events..end] {
                if let Event::Write { offset, bytes, .. } = event {
                    self.certain.write(*offset, bytes);
                }
            }
            self.certain_events = end;
        }
        let mut image = self.certain.clone();
        for event in &events[self.certain_events..moment] {
            if let Event::Write { offset, bytes, forced } = event {
                let loss = if *forced { Loss::None } else { loss };
                keep(&mut image, *offset, bytes, loss, sector, random);
            }
        }
        if let (Some(Event::Write { offset, bytes, .. }), true) = (events.get(moment), loss != Loss::None) {
            keep(&mut image, *offset, bytes, loss, sector, random);
        }
        image
    }
}

/// Applies the part of an uncertain write that survives the cut.
fn keep(image: &mut Image, offset: u64, bytes: &[u8], loss: Loss, sector: Sector, random: &mut Random) {
    let (whole, torn) = match loss {
        Loss::None => (100, 0),
        Loss::All => (0, 0),
        Loss::Some => (50, 0),
        Loss::TornFew => (10, 20),
        Loss::TornMost => (70, 20),
    };
    let dice = random.below(100);
    if dice < whole {
        image.write(offset, bytes);
    } else if dice < whole + torn {
        let percent = 10 + random.below(81);
        let mut at = 0;
        while at < bytes.len() {
            let place = offset + at as u64;
            let is_whole = sector == Sector::Large || holds_superblock(place);
            let unit = if is_whole { BLOCK - (place % BLOCK as u64) as usize } else { SECTOR };
            let end = bytes.len().min(at + unit);
            if random.chance(percent) {
                image.write(place, &bytes[at..end]);
            }
            at = end;
        }
    }
}

/// Returns `true` if the block holds a superblock: in ext4 and xfs the first block, in btrfs the blocks at 64 KiB and
/// 64 MiB.
fn holds_superblock(offset: u64) -> bool {
    [0, 16, 16384].contains(&(offset / BLOCK as u64))
}

const MAGIC: &[u8; 8] = b"dRigTrc1";

impl History {
    /// Writes the history to a file for later replay. `about` identifies it.
    pub fn save(&self, about: &str, out: &mut impl Write) -> io::Result<()> {
        out.write_all(MAGIC)?;
        put(out, about.len() as u64)?;
        out.write_all(about.as_bytes())?;
        put(out, self.start.blocks.len() as u64)?;
        for (number, block) in &self.start.blocks {
            put(out, *number)?;
            out.write_all(&block[..])?;
        }
        put(out, self.events.len() as u64)?;
        for event in &self.events {
            match event {
                Event::Write { offset, bytes, forced } => {
                    put(out, 1 + u64::from(*forced))?;
                    put(out, *offset)?;
                    put(out, bytes.len() as u64)?;
                    out.write_all(bytes)?;
                }
                Event::Flush => put(out, 0)?,
                Event::Acked(what) => {
                    put(out, 3)?;
                    put(out, *what)?;
                }
            }
        }
        out.flush()
    }

    /// Reads a file that [`History::save`] wrote. Returns `about` and the history.
    pub fn load(input: &mut impl Read) -> io::Result<(String, History)> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not a trace of these rigs");
        if &take_bytes(input, 8)?[..] != MAGIC {
            return Err(wrong());
        }
        let length = take(input)?;
        let about = String::from_utf8(take_bytes(input, length)?).map_err(|_| wrong())?;
        let mut history = History::default();
        for _ in 0..take(input)? {
            let number = take(input)?;
            history.start.write(number * BLOCK as u64, &take_bytes(input, BLOCK as u64)?);
        }
        for _ in 0..take(input)? {
            history.events.push(match take(input)? {
                0 => Event::Flush,
                kind @ (1 | 2) => {
                    let offset = take(input)?;
                    let length = take(input)?;
                    Event::Write { offset, bytes: take_bytes(input, length)?.into(), forced: kind == 2 }
                }
                3 => Event::Acked(take(input)?),
                _ => return Err(wrong()),
            });
        }
        Ok((about, history))
    }
}

fn put(out: &mut impl Write, number: u64) -> io::Result<()> {
    out.write_all(&number.to_le_bytes())
}

fn take(input: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    input.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn take_bytes(input: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> History {
        let mut drive = Drive::new(Image::default());
        drive.write(4096 * 40, &[1; 8192], false);
        drive.report(7);
        drive.flush();
        drive.write(4096 * 40, &[2; 4096], false);
        drive.write(4096 * 50, &[3; 512], true);
        drive.report(8);
        drive.into_parts().1
    }

    fn byte(image: &Image, offset: u64) -> u8 {
        let mut byte = [0];
        image.read(offset, &mut byte);
        byte[0]
    }

    /// Flushed and forced writes survive every cut; other writes may survive or be lost.
    #[test]
    fn what_was_flushed_stays() {
        let history = history();
        let mut random = Random(1);
        let mut seen = std::collections::BTreeSet::new();
        for (sector, states) in
            [(Sector::Small, &[(1, 1), (1, 2), (2, 1), (2, 2)][..]), (Sector::Large, &[(1, 1), (2, 2)])]
        {
            seen.clear();
            for loss in [Loss::CACHE_LOST; 50].into_iter().flatten() {
                let image = Cutter::new(&history).cut(6, loss, sector, &mut random);
                assert_eq!(byte(&image, 4096 * 41), 1);
                assert_eq!(byte(&image, 4096 * 50), 3);
                seen.insert((byte(&image, 4096 * 40), byte(&image, 4096 * 40 + 512)));
            }
            assert_eq!(seen.iter().copied().collect::<Vec<_>>(), states);
        }
        let kept = Cutter::new(&history).cut(6, Loss::None, Sector::Small, &mut random);
        assert_eq!(byte(&kept, 4096 * 40), 2);
        assert_eq!(byte(&Cutter::new(&history).cut(1, Loss::All, Sector::Small, &mut random), 4096 * 40), 0);
    }

    /// A history that is saved and loaded is unchanged.
    #[test]
    fn a_saved_history_comes_back() {
        let history = history();
        let mut bytes = Vec::new();
        history.save("whose", &mut bytes).unwrap();
        let (about, loaded) = History::load(&mut &bytes[..]).unwrap();
        assert_eq!(about, "whose");
        assert_eq!(loaded.acked(6), [7, 8]);
        assert_eq!(loaded.moment_of(8), Some(6));
        assert_eq!(format!("{:?}", loaded.events), format!("{:?}", history.events));
        assert!(History::load(&mut &bytes[..bytes.len() - 1]).is_err());
    }
}

//! Compressed input: gzip and zstd are read as streams, other forms are known by their names.
//!
//! A stream is told by its first bytes, not by the name of its file. Memory is bounded whatever it expands to: gzip
//! looks back at 32 KiB, zstd at a window of at most [`WINDOW_BYTES_MAX`].

use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The window that `zstd` itself accepts without being asked for more.
const WINDOW_BYTES_MAX: u64 = 128 << 20;

/// Decompressed bytes kept for the reader of rows.
const BUFFER_BYTES: usize = 256 << 10;

/// Enough to tell every form.
const MAGIC_BYTES_MAX: usize = 6;

/// A form of compression that is not read, and the program that writes what is.
#[derive(Debug)]
pub(super) struct Other {
    pub(super) what: &'static str,
    pub(super) program: &'static str,
}

const OTHERS: [(&[u8], Other); 5] = [
    (b"\xfd7zXZ\0", Other { what: "xz", program: "xz -dc" }),
    (b"BZh", Other { what: "bzip2", program: "bzip2 -dc" }),
    (b"PK\x03\x04", Other { what: "zip", program: "unzip -p" }),
    (b"\x04\x22\x4d\x18", Other { what: "lz4", program: "lz4 -dc" }),
    (b"\x1f\x9d", Other { what: "compress", program: "zcat" }),
];

/// The input without its compression, if it has one; the form that it has, if it can't be read.
pub(super) fn decompressed<'a>(mut input: impl BufRead + 'a) -> io::Result<Result<Box<dyn BufRead + 'a>, Other>> {
    let mut magic = Vec::with_capacity(MAGIC_BYTES_MAX);
    // A pipe may bring them one by one.
    input.by_ref().take(MAGIC_BYTES_MAX as u64).read_to_end(&mut magic)?;
    if let Some((_, other)) = OTHERS.into_iter().find(|(first, _)| magic.starts_with(first)) {
        return Ok(Err(other));
    }
    let is_gzip = magic.starts_with(b"\x1f\x8b");
    let is_zstd = magic.first_chunk().is_some_and(|&first| is_zstd(u32::from_le_bytes(first)));
    let whole = Cursor::new(magic).chain(input);
    Ok(Ok(if is_gzip {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, Gzip(MultiGzDecoder::new(whole))))
    } else if is_zstd {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, Zstd::new(whole)))
    } else {
        Box::new(whole)
    }))
}

/// A frame, or one that is to be skipped: parallel compressors begin with one.
fn is_zstd(magic: u32) -> bool {
    magic == 0xFD2F_B528 || (0x184D_2A50..=0x184D_2A5F).contains(&magic)
}

fn damaged(form: &str, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the {form} data is damaged or cut off: {error}"))
}

/// Several gzip members count as one stream.
struct Gzip<R>(MultiGzDecoder<R>);

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::UnexpectedEof => damaged("gzip", &error),
            _ => error,
        })
    }
}

/// Frames one behind another.
struct Zstd<R> {
    input: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(input: R) -> Zstd<R> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_BYTES_MAX);
        Zstd { input, decoder, in_frame: false }
    }

    /// Begins the next frame; `false` at the end.
    fn begin_frame(&mut self) -> io::Result<bool> {
        loop {
            if self.input.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.init(&mut self.input) {
                Ok(()) => {
                    self.in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut self.input.by_ref().take(u64::from(length)), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(damaged("zstd", &"a frame that is to be skipped ends early"));
                    }
                }
                Err(FrameDecoderError::WindowSizeTooBig { requested, .. }) => {
                    let what = format!(
                        "the zstd data needs a window of {requested} bytes, more than the {WINDOW_BYTES_MAX} that are \
                         read; zstd -dc --long=31 FILE writes it decompressed"
                    );
                    return Err(io::Error::new(ErrorKind::InvalidData, what));
                }
                Err(error) => return Err(damaged("zstd", &error)),
            }
        }
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let stored = self.decoder.get_checksum_from_data();
        match stored.is_none() || stored == self.decoder.get_calculated_checksum() {
            true => Ok(()),
            false => Err(damaged("zstd", &"a frame's checksum is wrong")),
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame && !self.begin_frame()? {
                return Ok(0);
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.decoder.is_finished() {
                self.end_frame()?;
                continue;
            }
            let decoded = self.decoder.decode_blocks(&mut self.input, BlockDecodingStrategy::UptoBlocks(1));
            decoded.map_err(|error| damaged("zstd", &error))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        compress_to_vec(text, CompressionLevel::Fastest)
    }

    fn read(input: &[u8]) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        // One byte at a time, as a slow pipe brings them.
        let slow = BufReader::with_capacity(1, input);
        decompressed(slow)?.expect("a form that is read").read_to_end(&mut text)?;
        Ok(text)
    }

    fn sample() -> Vec<u8> {
        (0..60_000u32).flat_map(|number| format!("{},{}\n", number, number.wrapping_mul(7919)).into_bytes()).collect()
    }

    /// Both forms give back what was compressed, in one part or several, with frames to skip between them.
    #[test]
    fn streams_come_back() {
        let text = sample();
        let (front, back) = text.split_at(70_000);
        let skipped = [&0x184D_2A53_u32.to_le_bytes()[..], &5u32.to_le_bytes(), b"hello"].concat();
        for stream in [
            text.clone(),
            gzip(&text),
            [gzip(front), gzip(back)].concat(),
            zstd(&text),
            [&skipped[..], &zstd(front), &zstd(b""), &skipped, &zstd(back), &skipped].concat(),
        ] {
            assert!(read(&stream).unwrap() == text);
        }
        for short in [&b""[..], b"k", b"\x1f", b"k,v\n"] {
            assert_eq!(read(short).unwrap(), short);
        }
        assert_eq!(read(&gzip(b"")).unwrap(), b"");
    }

    /// Streams that are cut off or changed end in an error, never in silence; other forms are named.
    #[test]
    fn damage_is_an_error() {
        let text = sample();
        for stream in [gzip(&text), zstd(&text)] {
            for cut in [stream.len() - 1, stream.len() - 4, stream.len() / 2, 12] {
                assert_eq!(read(&stream[..cut]).unwrap_err().kind(), ErrorKind::InvalidData, "cut at {cut}");
            }
            for at in [stream.len() / 2, stream.len() / 3, stream.len() - 2] {
                let mut changed = stream.clone();
                changed[at] ^= 0x10;
                assert_eq!(read(&changed).unwrap_err().kind(), ErrorKind::InvalidData, "byte {at} changed");
            }
        }
        let other = decompressed(&b"BZh91AY&SY"[..]).unwrap();
        assert!(matches!(other, Err(Other { what: "bzip2", .. })));
    }

    /// A window beyond the limit is refused before any memory is taken for it.
    #[test]
    fn windows_are_bounded() {
        // No single segment, no checksum, a window of 2^31 bytes, then a raw block of one byte.
        let stream = [&0xFD2F_B528_u32.to_le_bytes()[..], &[0, 21 << 3], &[9, 0, 0, b'x']].concat();
        assert!(read(&stream).unwrap_err().to_string().contains("needs a window of 2147483648 bytes"));
    }
}

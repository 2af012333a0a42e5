//! Compressed input. Gzip and zstd streams are decompressed; for any other form, the error names the form.
//!
//! The form is recognised by the first bytes of a stream, not by its file's name. Text may begin with some of these
//! bytes (`BZh`), so the other header fields must be valid too. Memory is bounded, however much a stream expands: gzip
//! looks back at 32 KiB, zstd at a window of at most [`WINDOW_BYTES_MAX`].

use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::GzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The largest window that `zstd` itself accepts by default.
const WINDOW_BYTES_MAX: u64 = 128 << 20;

/// The size of the buffer of decompressed bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// The number of bytes that suffice to identify any form.
const HEADER_BYTES_MAX: usize = 10;

/// An unsupported form of compression, and a program that decompresses it.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Other {
    pub(super) what: &'static str,
    pub(super) program: &'static str,
}

/// Decompresses the input if it is in a supported form of compression, and counts its compressed bytes in `count`. If
/// the form is not supported, returns that form.
pub(super) fn decompressed<'a>(
    mut input: impl BufRead + 'a,
    count: &AtomicU64,
) -> io::Result<Result<Box<dyn BufRead + 'a>, Other>> {
    let mut header = Vec::with_capacity(HEADER_BYTES_MAX);
    // A pipe may deliver these bytes one at a time.
    input.by_ref().take(HEADER_BYTES_MAX as u64).read_to_end(&mut header)?;
    let form = Form::of(&header);
    count.fetch_add(u64::from(form != Form::None), Ordering::Relaxed);
    let whole = Cursor::new(header).chain(input);
    Ok(Ok(match form {
        Form::None => Box::new(whole),
        Form::Gzip => Box::new(BufReader::with_capacity(BUFFER_BYTES, Gzip(Some(GzDecoder::new(whole))))),
        Form::Zstd => Box::new(BufReader::with_capacity(BUFFER_BYTES, Zstd::new(whole))),
        Form::Other(other) => return Ok(Err(other)),
    }))
}

/// The form of compression of a stream.
#[derive(PartialEq, Eq, Debug)]
enum Form {
    None,
    Gzip,
    Zstd,
    Other(Other),
}

impl Form {
    /// Recognises the form from the first bytes of a stream. A stream truncated within its header also counts as that
    /// form, unless text could begin that way.
    fn of(header: &[u8]) -> Form {
        let other = |what, program| Form::Other(Other { what, program });
        match header {
            // Check the method (deflate), and that the three reserved flags are clear.
            [0x1F, 0x8B] | [0x1F, 0x8B, 8] | [0x1F, 0x8B, 8, 0..=0x1F, ..] => Form::Gzip,
            // Check a reserved bit in the frame's descriptor.
            [0x28, 0xB5, 0x2F, 0xFD, fields @ ..] if fields.first().is_none_or(|bits| bits & 8 == 0) => Form::Zstd,
            // A skippable frame, which parallel compressors write first. Its length is below 16 MiB; in text, the
            // highest byte of the length would be a letter.
            [0x50..=0x5F, 0x2A, 0x4D, 0x18, _, _, _, 0, ..] => Form::Zstd,
            // Check that only the check type is set in the flags.
            [0xFD, b'7', b'z', b'X', b'Z', 0]
            | [0xFD, b'7', b'z', b'X', b'Z', 0, 0]
            | [0xFD, b'7', b'z', b'X', b'Z', 0, 0, 0..=0xF, ..] => other("xz", "xz -dc"),
            // Check the block size, and then the digits of pi before the first block, or those of its square root at
            // the end.
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59]
            | [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72, 0x45, 0x38, 0x50, 0x90] => other("bzip2", "bzip2 -dc"),
            // Check the version needed to extract (at most 6.3) and the method; any flags are allowed.
            [b'P', b'K', 3, 4, 0..=63, 0, _, _, 0..=99, 0] => other("zip", "unzip -p"),
            // Check version 1, a reserved bit, and a block size of 64 KiB to 4 MiB.
            [4, 0x22, 0x4D, 0x18, fields @ ..]
                if matches!(fields, [] | [0x40..=0x7F] | [0x40..=0x7F, 0x40 | 0x50 | 0x60 | 0x70, ..])
                    && fields.first().is_none_or(|flags| flags & 2 == 0) =>
            {
                other("lz4", "lz4 -dc")
            }
            // Check for codes of 9 to 16 bits and two reserved bits.
            [0x1F, 0x9D, fields @ ..] if fields.first().is_none_or(|bits| matches!(bits & 0x7F, 9..=16)) => {
                other("compress", "zcat")
            }
            _ => Form::None,
        }
    }
}

fn damaged(form: &str, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the {form} data is damaged or cut off: {error}"))
}

/// Reads the members of a gzip stream as a single stream. Zeros may follow the last member, because tapes and disks are
/// padded with them. At the end of the stream, this is `None`.
struct Gzip<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Gzip<R> {
    fn read_on(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let bytes = member.read(buffer)?;
            if bytes > 0 {
                return Ok(bytes);
            }
            let mut input = self.0.take().expect("a member has just ended").into_inner();
            match input.fill_buf()?.first() {
                None => {}
                Some(0) => pass_over_zeros(input)?,
                Some(_) => self.0 = Some(GzDecoder::new(input)),
            }
        }
        Ok(0)
    }
}

fn pass_over_zeros(mut input: impl BufRead) -> io::Result<()> {
    loop {
        let bytes = input.fill_buf()?;
        match (bytes.len(), bytes.iter().all(|&byte| byte == 0)) {
            (0, _) => return Ok(()),
            (length, true) => input.consume(length),
            (_, false) => return Err(io::Error::new(ErrorKind::InvalidData, "bytes follow the zeros at its end")),
        }
    }
}

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.read_on(buffer).map_err(|error| match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::UnexpectedEof => damaged("gzip", &error),
            _ => error,
        })
    }
}

/// Reads consecutive zstd frames.
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

    /// Begins the next frame. Returns `false` at the end.
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
        // Deliver one byte at a time, like a slow pipe.
        let slow = BufReader::with_capacity(1, input);
        decompressed(slow, &AtomicU64::new(0))?.expect("a form that is read").read_to_end(&mut text)?;
        Ok(text)
    }

    fn sample() -> Vec<u8> {
        (0..60_000u32).flat_map(|number| format!("{},{}\n", number, number.wrapping_mul(7919)).into_bytes()).collect()
    }

    /// Both forms decompress to the original, in one part or several, with skippable frames between them.
    #[test]
    fn streams_come_back() {
        let text = sample();
        let (front, back) = text.split_at(70_000);
        let skipped = [&0x184D_2A53_u32.to_le_bytes()[..], &5u32.to_le_bytes(), b"hello"].concat();
        for stream in [
            text.clone(),
            gzip(&text),
            [gzip(front), gzip(back)].concat(),
            [&gzip(front)[..], &gzip(b""), &gzip(back), &[0; 70_000]].concat(),
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

    /// A truncated or altered stream causes an error and is never accepted silently. Unsupported forms are named.
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
        for padded in [[&gzip(&text)[..], b"\0\0x"].concat(), [&gzip(&text)[..], b"\0", &gzip(&text)].concat()] {
            assert_eq!(read(&padded).unwrap_err().kind(), ErrorKind::InvalidData);
        }
        let other = decompressed(&b"BZh91AY&SY"[..], &AtomicU64::new(0)).unwrap();
        assert!(matches!(other, Err(Other { what: "bzip2", .. })));
    }

    /// The first bytes written by each program are recognised, and text that begins with a form's magic is treated as
    /// text.
    #[test]
    fn text_is_no_form() {
        for (header, what) in [
            (&b"\xfd7zXZ\0\0\x04\xe6\xd6"[..], "xz"),
            (b"BZh91AY&SY", "bzip2"),
            (b"BZh1\x17\x72\x45\x38\x50\x90", "bzip2"),
            (b"PK\x03\x04\x14\0\0\0\x08\0", "zip"),
            (b"PK\x03\x04\x0a\0\0\x08\0\0", "zip"),
            (b"PK\x03\x04\x2d\0\x08\0\x5d\0", "zip"),
            (b"\x04\x22\x4d\x18\x64\x40\xa7", "lz4"),
            (b"\x04\x22\x4d\x18\x44\x70\x1d", "lz4"),
            (b"\x1f\x9d\x90", "compress"),
            (b"\x1f\x9d", "compress"),
        ] {
            let found = Form::of(header);
            assert!(matches!(&found, Form::Other(other) if other.what == what), "{}: {found:?}", header.escape_ascii());
        }
        for cut in [&gzip(b"a")[..2], &gzip(b"a")[..3], &zstd(b"a")[..4]] {
            assert!(read(cut).is_err(), "{}", cut.escape_ascii());
        }
        for text in [
            &b"BZh"[..],
            b"BZh,b\n1,2\n",
            b"BZh9,b\n1,2,3",
            b"BZh91AY&SX",
            b"PK\x03\x04",
            b"PK\x03\x04,b\n1,2\n",
            b"PK\x03\x04\n1\n2\n3\n4",
            b"P*M\x18",
            b"P*M\x18,b\n1,2",
            b"\x04\x22\x4d\x18,b\n1,2",
            b"\x1f\x8b,b\n1,2",
            b"\x1f\x9d,b\n1,2",
            b"\xfd7zXZ\0,b\n1,2",
            b"\x28\xb5\x2f\xfd,b\n1,2",
        ] {
            assert_eq!(read(text).unwrap(), text, "{}", text.escape_ascii());
        }
    }

    /// A window above the limit is refused before memory is allocated for it.
    #[test]
    fn windows_are_bounded() {
        // A frame with neither the single-segment flag nor a checksum, with a window of 2^31 bytes, and a raw block of
        // one byte.
        let stream = [&0xFD2F_B528_u32.to_le_bytes()[..], &[0, 21 << 3], &[9, 0, 0, b'x']].concat();
        assert!(read(&stream).unwrap_err().to_string().contains("needs a window of 2147483648 bytes"));
    }
}

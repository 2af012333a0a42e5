//! Serves the drive and the acknowledgements as block devices of a virtual machine, with the NBD protocol.
//!
//! One socket has two exports. `disk` is the drive. `acked` receives acknowledgements, and its first block holds the
//! order for the guest. In the protocol, flushes and forced writes are requests of their own. The requests of one
//! export are served in order, and a request is answered only after it has been added to the drive's history.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::drive::BLOCK;
use crate::fuse::SharedDrive;
use crate::writers;

const FIXED_NEWSTYLE_NO_ZEROES: u16 = 3;
const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const OPTION_EXPORT_NAME: u32 = 1;
const OPTION_ABORT: u32 = 2;
const OPTION_INFO: u32 = 6;
const OPTION_GO: u32 = 7;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_UNSUPPORTED: u32 = 0x8000_0001;
/// The export has flags, and supports flushes and forced writes.
const TRANSMISSION_FLAGS: u16 = 1 | 4 | 8;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const FLAG_FORCED: u16 = 1;
const NOT_SUPPORTED: u32 = 95;
/// The maximum length of a request. No client sends longer ones.
const REQUEST_BYTES_MAX: u32 = 64 << 20;

/// The encoded order for the guest. The guest reads it from the first block of `acked`.
pub type Order = Arc<Mutex<Vec<u8>>>;

/// Serves both exports on a socket at `path` until the process exits.
pub fn serve(drive: &SharedDrive, disk_bytes: u64, order: &Order, path: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    let (drive, order) = (drive.clone(), Arc::clone(order));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = Server { drive: drive.clone(), order: Arc::clone(&order), disk_bytes };
            // Ignore errors, because a killed machine may drop its connection at any point.
            std::thread::spawn(move || server.serve(&stream));
        }
    });
    Ok(())
}

struct Server {
    drive: SharedDrive,
    order: Order,
    disk_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Export {
    Disk,
    Acked,
}

impl Server {
    fn serve(&self, stream: &UnixStream) -> io::Result<()> {
        let (mut input, mut output) = (BufReader::new(stream), BufWriter::new(stream));
        let Some(export) = self.negotiate(&mut input, &mut output)? else { return Ok(()) };
        self.transmit(export, &mut input, &mut output)
    }

    fn export(&self, name: &[u8]) -> Option<(Export, u64)> {
        match name {
            b"disk" => Some((Export::Disk, self.disk_bytes)),
            b"acks" => Some((Export::Acked, writers::ACK_FILE_BYTES)),
            _ => None,
        }
    }

    fn negotiate(&self, input: &mut impl Read, output: &mut impl Write) -> io::Result<Option<Export>> {
        output.write_all(b"NBDMAGIC")?;
        output.write_all(OPTION_MAGIC)?;
        output.write_all(&FIXED_NEWSTYLE_NO_ZEROES.to_be_bytes())?;
        output.flush()?;
        let _client_flags = take_u32(input)?;
        loop {
            if take::<8>(input)? != *OPTION_MAGIC {
                return Ok(None);
            }
            let option = take_u32(input)?;
            let mut data = vec![0; take_u32(input)?.min(65536) as usize];
            input.read_exact(&mut data)?;
            match option {
                OPTION_ABORT => return Ok(None),
                OPTION_EXPORT_NAME => {
                    let Some((export, bytes)) = self.export(&data) else { return Ok(None) };
                    output.write_all(&bytes.to_be_bytes())?;
                    output.write_all(&TRANSMISSION_FLAGS.to_be_bytes())?;
                    output.flush()?;
                    return Ok(Some(export));
                }
                OPTION_GO | OPTION_INFO => {
                    let length = data.first_chunk().map_or(0, |length| u32::from_be_bytes(*length)) as usize;
                    let named = data.get(4..4 + length).and_then(|name| self.export(name));
                    let Some((export, bytes)) = named else {
                        reply(output, option, REPLY_UNSUPPORTED, &[])?;
                        continue;
                    };
                    let mut info = vec![0, 0];
                    info.extend(bytes.to_be_bytes());
                    info.extend(TRANSMISSION_FLAGS.to_be_bytes());
                    reply(output, option, REPLY_INFO, &info)?;
                    reply(output, option, REPLY_ACK, &[])?;
                    if option == OPTION_GO {
                        return Ok(Some(export));
                    }
                }
                _ => reply(output, option, REPLY_UNSUPPORTED, &[])?,
            }
        }
    }

    fn transmit(&self, export: Export, input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
        loop {
            if take_u32(input)? != REQUEST_MAGIC {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let flags = u16::from_be_bytes(take(input)?);
            let kind = u16::from_be_bytes(take(input)?);
            let handle: [u8; 8] = take(input)?;
            let offset = u64::from_be_bytes(take(input)?);
            let length = take_u32(input)?;
            if length > REQUEST_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let mut bytes = vec![0; if kind == READ || kind == WRITE { length as usize } else { 0 }];
            let mut error = 0;
            match kind {
                READ if export == Export::Disk => self.drive.lock().read(offset, &mut bytes),
                READ if offset < BLOCK as u64 => {
                    let order = self.order.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    let there = order.get(offset as usize..).unwrap_or_default();
                    let end = there.len().min(bytes.len());
                    bytes[..end].copy_from_slice(&there[..end]);
                }
                READ => {}
                WRITE => {
                    input.read_exact(&mut bytes)?;
                    let mut drive = self.drive.lock();
                    match export {
                        Export::Disk => drive.write(offset, &bytes, flags & FLAG_FORCED != 0),
                        Export::Acked => writers::acks_in(&bytes).for_each(|what| drive.report(what)),
                    }
                    bytes.clear();
                }
                FLUSH if export == Export::Disk => self.drive.lock().flush(),
                FLUSH => {}
                DISCONNECT => return Ok(()),
                _ => error = NOT_SUPPORTED,
            }
            output.write_all(&SIMPLE_REPLY_MAGIC.to_be_bytes())?;
            output.write_all(&error.to_be_bytes())?;
            output.write_all(&handle)?;
            output.write_all(&bytes)?;
            output.flush()?;
        }
    }
}

fn reply(output: &mut impl Write, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    output.write_all(&REPLY_MAGIC.to_be_bytes())?;
    output.write_all(&option.to_be_bytes())?;
    output.write_all(&kind.to_be_bytes())?;
    output.write_all(&(data.len() as u32).to_be_bytes())?;
    output.write_all(data)?;
    output.flush()
}

fn take<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn take_u32(input: &mut impl Read) -> io::Result<u32> {
    Ok(u32::from_be_bytes(take(input)?))
}

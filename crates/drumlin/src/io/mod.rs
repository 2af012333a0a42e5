//! The engine's files: `drumlin_io`'s backends, behind a gate, in a folder whose parts may be on different devices.

mod divided_folder;
mod gate;

pub(crate) use divided_folder::with_parts;
#[cfg(test)]
pub(crate) use drumlin_io::testing::{fault, sim};
pub(crate) use drumlin_io::{
    AlignedBuffer, Backend, BackendFile, Completion, FileRef, Folder, FolderRef, InFlight, IoBackend, Lock, OpenIn,
    OpenOptions, Persist, Probe, Process, Queue, RunningCommand, Share, SyncMethod, Workers, backend, in_memory,
    open_folder,
};
pub(crate) use gate::Gate;

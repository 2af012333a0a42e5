//! tokio-uring, on its own runtime.

use std::io;
use std::sync::Arc;

use tokio_uring::fs::File;

use super::tasks::{self, Disk};
use crate::buffer::Buffer;
use crate::work::{self, Measured, Work};

struct UringFile(File);

impl Disk for UringFile {
    async fn read(&self, offset: u64, buffer: Buffer) -> io::Result<Buffer> {
        let (result, buffer) = self.0.read_at(buffer, offset).await;
        tasks::whole(result, buffer)
    }

    async fn write(&self, offset: u64, buffer: Buffer) -> io::Result<Buffer> {
        let (result, buffer) = self.0.write_at(buffer, offset).submit().await;
        tasks::whole(result, buffer)
    }

    async fn sync(&self) -> io::Result<()> {
        self.0.sync_data().await
    }
}

pub(crate) fn run(work: &Arc<Work>) -> io::Result<Measured> {
    tokio_uring::builder().entries(1024).start(async {
        let file = UringFile(File::from_std(work::open(work, true)?));
        tasks::run(work, file, tokio_uring::spawn).await
    })
}

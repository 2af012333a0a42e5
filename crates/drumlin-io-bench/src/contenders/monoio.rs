//! monoio, on its io_uring driver.

use std::io;
use std::sync::Arc;

use monoio::fs::File;
use monoio::{IoUringDriver, RuntimeBuilder};

use super::tasks::{self, Disk};
use crate::buffer::Buffer;
use crate::work::{self, Measured, Work};

struct MonoioFile(File);

impl Disk for MonoioFile {
    async fn read(&self, offset: u64, buffer: Buffer) -> io::Result<Buffer> {
        let (result, buffer) = self.0.read_at(buffer, offset).await;
        tasks::whole(result, buffer)
    }

    async fn write(&self, offset: u64, buffer: Buffer) -> io::Result<Buffer> {
        let (result, buffer) = self.0.write_at(buffer, offset).await;
        tasks::whole(result, buffer)
    }

    async fn sync(&self) -> io::Result<()> {
        self.0.sync_data().await
    }
}

pub(crate) fn run(work: &Arc<Work>) -> io::Result<Measured> {
    let mut runtime = RuntimeBuilder::<IoUringDriver>::new().with_entries(1024).build()?;
    runtime.block_on(async {
        let file = MonoioFile(File::from_std(work::open(work, true)?)?);
        tasks::run(work, file, monoio::spawn).await
    })
}

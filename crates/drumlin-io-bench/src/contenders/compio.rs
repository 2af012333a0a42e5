//! compio, with its default settings except for a ring that is large enough for all requests.

use std::io;
use std::sync::Arc;

use compio::BufResult;
use compio::driver::ProactorBuilder;
use compio::fs::{File, OpenOptions};
use compio::io::{AsyncReadAt, AsyncWriteAt};
use compio::runtime::RuntimeBuilder;

use super::tasks::{self, Disk};
use crate::buffer::Buffer;
use crate::work::{Measured, Row, Work};

struct CompioFile(File);

impl Disk for CompioFile {
    async fn read(&self, offset: u64, buffer: Buffer) -> io::Result<Buffer> {
        let BufResult(result, buffer) = self.0.read_at(buffer, offset).await;
        tasks::whole(result, buffer)
    }

    async fn write(&self, offset: u64, buffer: Buffer) -> io::Result<Buffer> {
        let BufResult(result, buffer) = (&self.0).write_at(buffer, offset).await;
        tasks::whole(result, buffer)
    }

    async fn sync(&self) -> io::Result<()> {
        self.0.sync_data().await
    }
}

pub(crate) fn run(work: &Arc<Work>) -> io::Result<Measured> {
    let mut proactor = ProactorBuilder::new();
    proactor.capacity(1024);
    let runtime = RuntimeBuilder::new().with_proactor(proactor).build()?;
    runtime.block_on(async {
        let mut options = OpenOptions::new();
        options.read(true).write(work.row == Row::Write).custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
        let file = CompioFile(options.open(&work.path).await?);
        tasks::run(work, file, compio::runtime::spawn).await
    })
}

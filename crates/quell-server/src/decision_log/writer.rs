//! Writer: the thread that makes lines of decisions and writes them.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};

use quell::store::memory::HashKey;

use super::{Message, WriterOrders, line};
use crate::config::LogTarget;
use crate::error::ServeError;
use crate::metrics::Metrics;

/// Bytes that are written at once while there is more to say.
const BATCH: usize = 64 * 1_024;

/// Mode of the file: its owner and group may read it, since keys are people's names and addresses.
const MODE: u32 = 0o640;

pub(super) struct Writer {
    target: LogTarget,
    out: Out,
    secret: Option<HashKey>,
    metrics: Arc<Metrics>,
    buffer: Vec<u8>,
    /// Lines in the buffer.
    lines: u64,
    has_failed: bool,
}

type Out = Box<dyn Write + Send>;

fn open(target: &LogTarget) -> io::Result<Out> {
    match target {
        LogTarget::Stdout => Ok(Box::new(io::stdout())),
        LogTarget::Stderr => Ok(Box::new(io::stderr())),
        // Whoever opens a pipe waits for somebody at its other end.
        LogTarget::File(path)
            if std::fs::metadata(path).is_ok_and(|of| of.file_type().is_fifo()) =>
        {
            Err(io::Error::other(
                "it is a pipe: write - for standard output, which may be one",
            ))
        }
        LogTarget::File(path) => {
            let mut options = OpenOptions::new();
            options.append(true).create(true).mode(MODE);
            Ok(Box::new(options.open(path)?))
        }
    }
}

impl Writer {
    pub(super) fn open(
        target: LogTarget,
        secret: Option<HashKey>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, ServeError> {
        let out = open(&target).map_err(|source| ServeError::DecisionLog {
            target: name(&target),
            source,
        })?;
        Ok(Self {
            target,
            out,
            secret,
            metrics,
            buffer: Vec::new(),
            lines: 0,
            has_failed: false,
        })
    }

    /// Writes until it is told to stop and all is written, or nobody is left who could say anything.
    pub(super) fn run(mut self, messages: &Receiver<Message>, wanted: &WriterOrders) {
        loop {
            let message = match messages.try_recv() {
                Ok(message) => message,
                Err(TryRecvError::Empty) => {
                    self.flush();
                    if wanted.stop.load(Ordering::Acquire) {
                        break;
                    }
                    match messages.recv() {
                        Ok(message) => message,
                        Err(_) => break,
                    }
                }
                Err(TryRecvError::Disconnected) => break,
            };
            if wanted.reopen.swap(false, Ordering::AcqRel) {
                self.reopen();
            }
            if let Message::Decided(decided, _share) = message {
                self.lines += line::write(&decided, self.secret, &mut self.buffer);
                if self.buffer.len() >= BATCH {
                    self.flush();
                }
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let lines = std::mem::take(&mut self.lines);
        let out = &mut self.out;
        let written = out.write_all(&self.buffer).and_then(|()| out.flush());
        self.buffer.clear();
        // Long keys leave no more room than is written at once.
        self.buffer.shrink_to(2 * BATCH);
        match written {
            Ok(()) => {
                self.metrics.log_written.add(lines);
                self.has_failed = false;
                self.metrics.log_failing.set(0);
            }
            Err(error) => {
                self.metrics.log_dropped.add(lines);
                self.metrics.log_failing.set(1);
                // Once per failure: a full disk would fill another log as well.
                if !std::mem::replace(&mut self.has_failed, true) {
                    tracing::error!(%error, log = name(&self.target), "the decision log cannot be written");
                }
            }
        }
    }

    fn reopen(&mut self) {
        self.flush();
        match open(&self.target) {
            Ok(out) => self.out = out,
            Err(error) => {
                tracing::error!(%error, log = name(&self.target), "the decision log cannot be opened again");
            }
        }
    }
}

fn name(target: &LogTarget) -> String {
    match target {
        LogTarget::Stdout => "standard output".to_owned(),
        LogTarget::Stderr => "standard error".to_owned(),
        LogTarget::File(path) => path.display().to_string(),
    }
}

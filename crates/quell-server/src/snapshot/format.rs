//! Format: how a snapshot lies in its file.
//!
//! ```text
//! "quell snapshot\n\0"   16 bytes
//! version               u32, little endian, as are all numbers outside blocks
//! blocks                kind u8, length u32, CRC-32 of kind, length and content u32, content
//! ```
//!
//! The first block is the head (secret, both clocks), then come states, then limits, then the end, which says how
//! many states there were; nothing follows it. Contents are in postcard. Each change of the format raises the
//! version, and no other is read.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::path::Path;

use quell::store::memory::{HashKey, Saved};
use quell_core::limit::{ActiveLimit, LimitId};
use quell_core::time::Now;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::limit_record::LimitRecord;
use super::state_record::StateRecord;
use crate::error::{DataDirError, io_error};

const MAGIC: &[u8; 16] = b"quell snapshot\n\0";

/// The version that is written and read.
const VERSION: u32 = 1;

/// Content after which a block is closed.
const BLOCK: usize = 1_024 * 1_024;

/// No block is as long: the longest state, a full sliding log, is 2 MB.
const MAX_BLOCK: u32 = 256 * 1_024 * 1_024;

const HEAD: u8 = 1;
const STATES: u8 = 2;
const LIMITS: u8 = 3;
const END: u8 = 4;

/// Head of a snapshot: the secret, and both clocks when it began.
#[derive(Serialize, Deserialize)]
struct SnapshotHead {
    secret: [u64; 2],
    monotonic: u64,
    wall: u64,
}

/// Contents of a snapshot, on this process's clock.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) secret: HashKey,
    pub(crate) limits: Vec<ActiveLimit>,
    pub(crate) states: Vec<Saved>,
}

/// A snapshot that is being written.
pub(super) struct Out<W> {
    writer: W,
    block: Vec<u8>,
    states: u64,
    bytes: u64,
}

impl<W: Write> Out<W> {
    pub(super) fn begin(mut writer: W, secret: HashKey, at: Now) -> io::Result<Self> {
        writer.write_all(MAGIC)?;
        writer.write_all(&VERSION.to_le_bytes())?;
        let mut out = Self {
            writer,
            block: Vec::new(),
            states: 0,
            bytes: MAGIC.len() as u64 + 4,
        };
        out.push(&SnapshotHead {
            secret: secret.0,
            monotonic: at.monotonic.as_nanos(),
            wall: at.wall.as_nanos(),
        })?;
        out.close(HEAD)?;
        Ok(out)
    }

    pub(super) fn state(&mut self, saved: &Saved) -> io::Result<()> {
        self.push(&StateRecord::from(saved))?;
        self.states += 1;
        if self.block.len() >= BLOCK {
            self.close(STATES)?;
        }
        Ok(())
    }

    /// Writes the rest; returns the writer and how many bytes went through it.
    pub(super) fn end(mut self, limits: &[ActiveLimit]) -> io::Result<(W, u64)> {
        if !self.block.is_empty() {
            self.close(STATES)?;
        }
        for active in limits {
            // States under a limit that has no record are left out when they are read.
            if let Some(record) = LimitRecord::new(active) {
                self.push(&record)?;
            }
        }
        self.close(LIMITS)?;
        let states = self.states;
        self.push(&states)?;
        self.close(END)?;
        Ok((self.writer, self.bytes))
    }

    fn push(&mut self, value: &impl Serialize) -> io::Result<()> {
        let block = std::mem::take(&mut self.block);
        self.block = postcard::to_extend(value, block).map_err(io::Error::other)?;
        Ok(())
    }

    fn close(&mut self, kind: u8) -> io::Result<()> {
        let length = u32::try_from(self.block.len()).map_err(io::Error::other)?;
        let crc = checksum(kind, length, &self.block);
        self.writer.write_all(&[kind])?;
        self.writer.write_all(&length.to_le_bytes())?;
        self.writer.write_all(&crc.to_le_bytes())?;
        self.writer.write_all(&self.block)?;
        self.bytes += 9 + u64::from(length);
        self.block.clear();
        Ok(())
    }
}

fn checksum(kind: u8, length: u32, content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind]);
    hasher.update(&length.to_le_bytes());
    hasher.update(content);
    hasher.finalize()
}

/// Reads a snapshot of `length` bytes and moves its instants to the clock that says `now`; `path` is
/// for errors.
pub(super) fn read(
    path: &Path,
    reader: &mut impl Read,
    length: u64,
    now: Now,
) -> Result<Restored, DataDirError> {
    let mut input = In {
        path,
        reader,
        left: length,
        block: 0,
    };
    input.begin()?;
    let mut head: Option<SnapshotHead> = None;
    let mut limits: Vec<ActiveLimit> = Vec::new();
    let mut states: Vec<Saved> = Vec::new();
    loop {
        let (kind, content) = input.block()?;
        match (kind, &head) {
            (HEAD, None) => head = input.all(&content)?.pop(),
            (STATES, Some(_)) => {
                let records = input.all::<StateRecord>(&content)?;
                states.extend(records.into_iter().map(Saved::from));
            }
            (LIMITS, Some(_)) => {
                for record in input.all::<LimitRecord>(&content)? {
                    let active = ActiveLimit::try_from(record);
                    limits.push(active.map_err(|error| input.torn(&error.to_string()))?);
                }
            }
            (END, Some(head)) => {
                let said = input.all::<u64>(&content)?;
                if said != [states.len() as u64] {
                    return Err(input.torn("states are missing"));
                }
                if input.left > 0 {
                    return Err(input.torn("something follows the end"));
                }
                shift(&mut limits, &mut states, head, now);
                return Ok(Restored {
                    secret: HashKey(head.secret),
                    limits,
                    states,
                });
            }
            _ => return Err(input.torn("it has no place here")),
        }
    }
}

/// Monotonic clocks of two processes have nothing in common; what went by between them is what the
/// wall clock says.
fn shift(limits: &mut [ActiveLimit], states: &mut Vec<Saved>, then: &SnapshotHead, now: Now) {
    let ahead = |monotonic: u64, wall: u64| i128::from(monotonic) - i128::from(wall);
    let ahead_now = ahead(now.monotonic.as_nanos(), now.wall.as_nanos());
    let nanos = (ahead_now - ahead(then.monotonic, then.wall))
        .clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    let nanos = i64::try_from(nanos).unwrap_or_default();
    for active in limits.iter_mut() {
        active.since = active.since.shifted(nanos);
    }
    let by_id: HashMap<LimitId, &ActiveLimit> = limits.iter().map(|i| (i.id, i)).collect();
    states.retain_mut(|saved| {
        let active = by_id.get(&saved.state.limit);
        let limit = active.map(|active| &active.limit);
        saved.state.shift(limit, nanos);
        // Its rule was removed while it was written, or it was asked under a limit that came with the
        // call and was given up.
        limit.is_some() || saved.state.versions.is_some()
    });
}

struct In<'r, R> {
    path: &'r Path,
    reader: &'r mut R,
    left: u64,
    /// Blocks so far, for messages.
    block: usize,
}

impl<R: Read> In<'_, R> {
    fn torn(&self, reason: &str) -> DataDirError {
        DataDirError::Torn {
            path: self.path.to_owned(),
            reason: format!("block {}: {reason}", self.block),
        }
    }

    fn begin(&mut self) -> Result<(), DataDirError> {
        let path = self.path.to_owned();
        if self.left < MAGIC.len() as u64 + 4 || self.take::<16>()? != *MAGIC {
            return Err(DataDirError::Foreign(path));
        }
        match u32::from_le_bytes(self.take()?) {
            VERSION => Ok(()),
            version => Err(DataDirError::Format {
                path,
                version,
                known: VERSION,
            }),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DataDirError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), DataDirError> {
        match self.left.checked_sub(bytes.len() as u64) {
            Some(left) => self.left = left,
            None => return Err(self.torn("the file ends too early")),
        }
        self.reader.read_exact(bytes).map_err(|error| {
            match error.kind() {
                // It was cut while it was read.
                io::ErrorKind::UnexpectedEof => self.torn("the file ends too early"),
                _ => io_error("read", self.path)(error),
            }
        })
    }

    fn block(&mut self) -> Result<(u8, Vec<u8>), DataDirError> {
        self.block += 1;
        let [kind] = self.take()?;
        let length = u32::from_le_bytes(self.take()?);
        let crc = u32::from_le_bytes(self.take()?);
        if length > MAX_BLOCK || u64::from(length) > self.left {
            return Err(self.torn("the file ends too early"));
        }
        let mut content = vec![0; length as usize];
        self.fill(&mut content)?;
        if checksum(kind, length, &content) != crc {
            return Err(self.torn("its checksum differs"));
        }
        Ok((kind, content))
    }

    /// All values of a block.
    fn all<T: DeserializeOwned>(&self, content: &[u8]) -> Result<Vec<T>, DataDirError> {
        let mut values = Vec::new();
        let mut rest = content;
        while !rest.is_empty() {
            let (value, after) =
                postcard::take_from_bytes(rest).map_err(|error| self.torn(&error.to_string()))?;
            values.push(value);
            rest = after;
        }
        Ok(values)
    }
}

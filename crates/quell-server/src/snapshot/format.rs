//! Format: how a snapshot lies in its file.
//!
//! ```text
//! "quell snapshot\n\0"   16 bytes
//! version               u32, little endian, as are all numbers outside blocks
//! blocks                kind u8, length u32, CRC-32 of kind, length and content u32, content
//! ```
//!
//! The first block is the head (secret, both clocks), then come states, then limits, then the end,
//! which says how many states there were; nothing follows it. Contents are in postcard. A change
//! that an older version would misread raises the version.

use std::collections::HashMap;
use std::io::{self, Read, Write};

use quell::store::memory::{HashKey, Saved};
use quell_core::limit::{ActiveLimit, LimitId};
use quell_core::time::{Monotonic, Now, Wall};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::directory::Restored;
use super::limit_record::LimitRecord;
use super::state_record::StateRecord;

const MAGIC: &[u8; 16] = b"quell snapshot\n\0";

/// The version that is written, and the last that is read.
pub(super) const VERSION: u32 = 4;

/// Content after which a block is closed.
const BLOCK: usize = 1_024 * 1_024;

/// No block is as long: the longest state, a full sliding log, is 2 MB.
const MAX_BLOCK: u32 = 256 * 1_024 * 1_024;

const HEAD: u8 = 1;
const STATES: u8 = 2;
const LIMITS: u8 = 3;
const END: u8 = 4;

/// What a snapshot begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) secret: HashKey,
    /// Both clocks when the snapshot began.
    pub(super) at: Now,
}

#[derive(Serialize, Deserialize)]
struct HeadRecord {
    secret: [u64; 2],
    monotonic: u64,
    wall: u64,
}

/// Why a file cannot be read.
#[derive(Debug)]
pub(super) enum FormatError {
    Foreign,
    Future(u32),
    Torn(String),
    Io(io::Error),
}

/// A snapshot that is being written.
pub(super) struct Out<W> {
    writer: W,
    block: Vec<u8>,
    states: u64,
    bytes: u64,
}

impl<W: Write> Out<W> {
    pub(super) fn begin(mut writer: W, head: &Head) -> io::Result<Self> {
        writer.write_all(MAGIC)?;
        writer.write_all(&VERSION.to_le_bytes())?;
        let mut out = Self {
            writer,
            block: Vec::new(),
            states: 0,
            bytes: MAGIC.len() as u64 + 4,
        };
        out.push(&HeadRecord {
            secret: head.secret.0,
            monotonic: head.at.monotonic.as_nanos(),
            wall: head.at.wall.as_nanos(),
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
            if let Some(record) = LimitRecord::of(active) {
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

/// Reads a snapshot of `length` bytes and moves its instants to the clock that says `now`.
pub(super) fn read(reader: &mut impl Read, length: u64, now: Now) -> Result<Restored, FormatError> {
    let mut input = In {
        reader,
        left: length,
        block: 0,
    };
    input.begin()?;
    let mut head: Option<Head> = None;
    let mut limits: Vec<ActiveLimit> = Vec::new();
    let mut states: Vec<Saved> = Vec::new();
    loop {
        let (kind, content) = input.block()?;
        match (kind, &head) {
            (HEAD, None) => head = Some(read_head(&content)?),
            (STATES, Some(_)) => {
                for record in input.all::<StateRecord>(&content)? {
                    states.push(Saved::from(record));
                }
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
                shift(&mut limits, &mut states, head.at, now);
                return Ok(Restored {
                    secret: head.secret,
                    limits,
                    states,
                });
            }
            _ => return Err(input.torn("it has no place here")),
        }
    }
}

fn read_head(content: &[u8]) -> Result<Head, FormatError> {
    let record: HeadRecord =
        postcard::from_bytes(content).map_err(|error| FormatError::Torn(error.to_string()))?;
    Ok(Head {
        secret: HashKey(record.secret),
        at: Now {
            monotonic: Monotonic::from_nanos(record.monotonic),
            wall: Wall::from_nanos(record.wall),
        },
    })
}

/// Monotonic clocks of two processes have nothing in common; what went by between them is what the
/// wall clock says.
fn shift(limits: &mut [ActiveLimit], states: &mut Vec<Saved>, then: Now, now: Now) {
    let ahead = |at: Now| i128::from(at.monotonic.as_nanos()) - i128::from(at.wall.as_nanos());
    let nanos = (ahead(now) - ahead(then)).clamp(i128::from(i64::MIN), i128::from(i64::MAX));
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
    reader: &'r mut R,
    left: u64,
    /// Blocks so far, for messages.
    block: usize,
}

impl<R: Read> In<'_, R> {
    fn torn(&self, reason: &str) -> FormatError {
        FormatError::Torn(format!("block {}: {reason}", self.block))
    }

    fn begin(&mut self) -> Result<(), FormatError> {
        if self.left < MAGIC.len() as u64 + 4 {
            return Err(FormatError::Foreign);
        }
        if self.take::<16>()? != *MAGIC {
            return Err(FormatError::Foreign);
        }
        match u32::from_le_bytes(self.take()?) {
            1..=VERSION => Ok(()),
            0 => Err(FormatError::Foreign),
            version => Err(FormatError::Future(version)),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), FormatError> {
        match self.left.checked_sub(bytes.len() as u64) {
            Some(left) => self.left = left,
            None => return Err(self.torn("the file ends too early")),
        }
        self.reader.read_exact(bytes).map_err(|error| {
            match error.kind() {
                // It was cut while it was read.
                io::ErrorKind::UnexpectedEof => self.torn("the file ends too early"),
                _ => FormatError::Io(error),
            }
        })
    }

    fn block(&mut self) -> Result<(u8, Vec<u8>), FormatError> {
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
    fn all<T: DeserializeOwned>(&self, content: &[u8]) -> Result<Vec<T>, FormatError> {
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

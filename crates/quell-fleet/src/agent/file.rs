//! The node's file: what the next start of a node begins with.
//!
//! It is replaced as a whole: written beside itself, brought to the disk, renamed. A lock beside it keeps
//! two processes of one machine from being one node.
//!
//! A file that cannot be read is no reason not to start: a node without a file has nothing until it has
//! joined, which is always safe.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use prost::Message;
use quell_shares::message::{Kept, LimitName, MemberSnapshot};
use quell_shares::plan::{LimitId, MAX_LIMITS, MemberId};
use quell_shares::schedule::Right;

use crate::disk::{self, beside};
use crate::proto;

/// First bytes of every such file; the last byte is the version of the format.
const MAGIC: &[u8; 4] = b"qln\x01";

/// The largest file, in bytes: 10,000 limits with the longest names take less.
const MAX_BYTES: u64 = 8 << 20;

/// Reason why the node's file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system says no.
    #[error("cannot use the node's file {}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// Another process has it.
    #[error(
        "the node's file {} is in use by another process: two processes must not be one node; give each its \
         own number and file",
        .path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is of another node.
    #[error(
        "the node's file {} is of node {}, and this is node {}: give each node a file of its own",
        .path.display(), .found.0, .member.0
    )]
    OtherNode {
        /// The file.
        path: PathBuf,
        /// Member whose file it is.
        found: MemberId,
        /// This node.
        member: MemberId,
    },
}

/// The file of this process, which nobody else uses while it runs.
#[derive(Debug)]
pub(super) struct NodeFile {
    path: PathBuf,
    member: MemberId,
    /// Locked as long as it is open.
    _lock: File,
}

impl NodeFile {
    pub(super) fn open(path: &Path, member: MemberId) -> Result<Self, FileError> {
        let path = path.to_owned();
        let lock_path = beside(&path, ".lock");
        let io = |error| FileError::Io {
            path: lock_path.clone(),
            error,
        };
        let mut options = File::options();
        let lock = options.create(true).truncate(false).write(true);
        let lock = lock.open(&lock_path).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path,
                member,
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => Err(FileError::InUse { path }),
            Err(TryLockError::Error(error)) => Err(io(error)),
        }
    }

    /// Snapshot that the start before has written. If that cannot be read, nothing and the reason.
    pub(super) fn read(&self) -> Result<(MemberSnapshot, Option<String>), FileError> {
        let nothing = |why: String| Ok((MemberSnapshot::default(), Some(why)));
        let body = match read_checked(&self.path, MAGIC) {
            Ok(Some(body)) => body,
            Ok(None) => return Ok((MemberSnapshot::default(), None)),
            Err(why) => return nothing(why),
        };
        match decode(&body) {
            Ok((found, snapshot)) if found == self.member => Ok((snapshot, None)),
            Ok((found, _)) => Err(FileError::OtherNode {
                path: self.path.clone(),
                found,
                member: self.member,
            }),
            Err(why) => nothing(why.to_owned()),
        }
    }

    /// Replaces the file. When this returns it is on the disk.
    pub(super) fn write(&self, snapshot: &MemberSnapshot) -> io::Result<()> {
        replace(&self.path, MAGIC, &encode(self.member, snapshot))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Replaces a file by `magic`, a checksum and `body`. When this returns it is on the disk.
pub(super) fn replace(path: &Path, magic: &[u8; 4], body: &[u8]) -> io::Result<()> {
    let sum = crc32fast::hash(body).to_be_bytes();
    disk::replace(path, &[magic, &sum, body])
}

/// The body of a file that [`replace`] wrote; `None` if there is no file.
///
/// # Errors
/// Why it cannot be read.
pub(super) fn read_checked(path: &Path, magic: &[u8; 4]) -> Result<Option<Vec<u8>>, String> {
    let bytes = match fs::metadata(path) {
        Ok(about) if about.len() > MAX_BYTES => return Err("it is too large".to_owned()),
        Ok(_) => fs::read(path),
        Err(error) => Err(error),
    };
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let rest = bytes.strip_prefix(magic);
    let rest = rest.ok_or("the file is of another version, or not a node's")?;
    let (sum, body) = rest.split_first_chunk().ok_or("it is too short")?;
    if u32::from_be_bytes(*sum) != crc32fast::hash(body) {
        return Err("it is damaged".to_owned());
    }
    Ok(Some(body.to_vec()))
}

fn encode(member: MemberId, snapshot: &MemberSnapshot) -> Vec<u8> {
    let right = |right: Right| {
        Some(proto::Right {
            rate: right.rate,
            burst: right.burst,
        })
    };
    let message = proto::NodeFile {
        member: member.0,
        epoch: snapshot.epoch,
        incarnation: snapshot.incarnation,
        record: snapshot.record,
        revision: snapshot.revision,
        names: snapshot
            .names
            .iter()
            .map(|name| proto::LimitName {
                limit: name.limit.0,
                name: name.name.to_string(),
            })
            .collect(),
        kept: snapshot
            .kept
            .iter()
            .map(|kept| proto::Kept {
                limit: kept.limit.0,
                right: right(kept.right),
                whole: right(kept.whole),
            })
            .collect(),
    };
    message.encode_to_vec()
}

fn decode(body: &[u8]) -> Result<(MemberId, MemberSnapshot), &'static str> {
    let message = proto::NodeFile::decode(body).map_err(|_| "it is damaged")?;
    if message.kept.len() > MAX_LIMITS || message.names.len() > MAX_LIMITS {
        return Err("it has too many limits");
    }
    let right = |right: Option<proto::Right>| {
        right.map_or(Right::NONE, |proto::Right { rate, burst }| Right {
            rate,
            burst,
        })
    };
    let names = message.names.into_iter().map(|name| LimitName {
        limit: LimitId(name.limit),
        name: name.name.into(),
    });
    let kept = message.kept.into_iter().map(|kept| Kept {
        limit: LimitId(kept.limit),
        right: right(kept.right),
        whole: right(kept.whole),
    });
    let snapshot = MemberSnapshot {
        epoch: message.epoch,
        incarnation: message.incarnation,
        record: message.record,
        revision: message.revision,
        names: names.collect(),
        kept: kept.collect(),
    };
    Ok((MemberId(message.member), snapshot))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> MemberSnapshot {
        MemberSnapshot {
            epoch: 7,
            incarnation: 3,
            record: 9,
            revision: 2,
            names: vec![LimitName {
                limit: LimitId(1),
                name: "api".into(),
            }],
            kept: vec![Kept {
                limit: LimitId(1),
                right: Right {
                    rate: 10,
                    burst: 20,
                },
                whole: Right {
                    rate: 100,
                    burst: 200,
                },
            }],
        }
    }

    #[test]
    fn what_is_written_is_read_by_the_next_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet");
        let file = NodeFile::open(&path, MemberId(4)).unwrap();
        assert_eq!(file.read().unwrap(), (MemberSnapshot::default(), None));
        file.write(&snapshot()).unwrap();
        file.write(&snapshot()).unwrap();
        let other = NodeFile::open(&path, MemberId(4)).unwrap_err();
        assert!(matches!(other, FileError::InUse { .. }), "{other}");
        drop(file);
        let next = NodeFile::open(&path, MemberId(4)).unwrap();
        assert_eq!(next.read().unwrap(), (snapshot(), None));
        drop(next);
        let other = NodeFile::open(&path, MemberId(5)).unwrap().read();
        assert!(other.unwrap_err().to_string().contains("of node 4"));
    }

    #[test]
    fn what_cannot_be_read_is_nothing_and_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet");
        let file = NodeFile::open(&path, MemberId(4)).unwrap();
        file.write(&snapshot()).unwrap();
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x20;
            fs::write(&path, &bytes).unwrap();
            let (read, why) = file.read().unwrap();
            assert_eq!(read, MemberSnapshot::default(), "byte {at}");
            assert!(why.is_some());
            fs::write(&path, &whole[..at]).unwrap();
            assert!(file.read().unwrap().1.is_some(), "{at} bytes");
        }
    }
}

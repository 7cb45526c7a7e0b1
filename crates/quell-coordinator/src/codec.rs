//! Codec: the durable record, and what a leader hands over, as bytes.
//!
//! Two bytes that say what it is, one for the version of the format, then protobuf. Every change of the
//! format raises the version, also one that protobuf could read: a leader that ignored a field would write
//! the record back without it, and members would be promised twice what it meant. So a leader refuses a
//! record of another version, and says so.
//!
//! Whatever the bytes are, decoding them fails or gives a value; it allocates some fifty times their
//! number at most.

mod record;
mod snapshot;

use prost::Message;
use quell_shares::plan::Record;

use crate::store::MAX_WRITE;

pub use self::snapshot::{decode_snapshot, encode_snapshot};

/// The version of the format that this program writes and reads.
pub const FORMAT: u8 = 1;

/// Kind of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CodecKind {
    Record,
    Snapshot,
}

impl CodecKind {
    const fn magic(self) -> [u8; 2] {
        match self {
            Self::Record => *b"qr",
            Self::Snapshot => *b"qs",
        }
    }
}

/// Reason why bytes cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// Another version of this program wrote them.
    #[error(
        "the fleet's record has format {found}, and this version of quell knows {FORMAT}: start the version \
         that wrote it"
    )]
    OtherFormat {
        /// The version of their format.
        found: u8,
    },
    /// They are not what this program wrote.
    #[error("the fleet's record cannot be read: {0}")]
    Damaged(&'static str),
    /// The configuration store would not take them.
    #[error(
        "the fleet's record needs {bytes} bytes, and the configuration store takes {MAX_WRITE}: use fewer \
         limits, shorter names or fewer members, or a second fleet"
    )]
    TooLarge {
        /// Their number.
        bytes: usize,
    },
}

/// Encodes a record.
///
/// # Errors
/// [`CodecError::TooLarge`].
pub fn encode_record(record: &Record) -> Result<Vec<u8>, CodecError> {
    let bytes = encode(CodecKind::Record, &record::RecordMessage::new(record));
    if bytes.len() > MAX_WRITE - 1_024 {
        return Err(CodecError::TooLarge { bytes: bytes.len() });
    }
    Ok(bytes)
}

/// Encodes a record; as many of its older plans are merged as have to be.
///
/// # Errors
/// [`CodecError::TooLarge`] if it is with all of them merged.
pub fn fit_record(record: &mut Record) -> Result<Vec<u8>, CodecError> {
    loop {
        match encode_record(record) {
            Err(CodecError::TooLarge { .. }) if record.merge_older() => {}
            encoded => return encoded,
        }
    }
}

/// Checks that a record has room for its next change, whichever members are silent then. What would be
/// refused then is refused before it is in force.
///
/// # Errors
/// [`CodecError::TooLarge`] with the room that would be needed.
pub fn check_room(record: &Record) -> Result<(), CodecError> {
    encode_record(&record.with_all_merged()).map(drop)
}

/// Decodes a record.
///
/// # Errors
/// [`CodecError`].
pub fn decode_record(bytes: &[u8]) -> Result<Record, CodecError> {
    decode::<record::RecordMessage>(CodecKind::Record, bytes)?.record()
}

fn encode(kind: CodecKind, message: &impl Message) -> Vec<u8> {
    let mut bytes = kind.magic().to_vec();
    bytes.push(FORMAT);
    bytes.extend(message.encode_to_vec());
    bytes
}

fn decode<M: Message + Default>(kind: CodecKind, bytes: &[u8]) -> Result<M, CodecError> {
    let Some(([one, two, format], body)) = bytes.split_first_chunk::<3>() else {
        return Err(CodecError::Damaged("it is too short"));
    };
    if [*one, *two] != kind.magic() {
        return Err(CodecError::Damaged("it is something else"));
    }
    if *format != FORMAT {
        return Err(CodecError::OtherFormat { found: *format });
    }
    M::decode(body).map_err(|_| CodecError::Damaged("it is no protobuf"))
}

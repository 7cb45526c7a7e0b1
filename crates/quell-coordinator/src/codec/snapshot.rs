//! The messages of a hand-over, and their conversion.
//!
//! A hand-over is split, because a fleet of some hundred members and limits has more than the store takes
//! at once. Each part says how many there are, so a successor knows whether it has all.

use std::time::Duration;

use prost::Message;
use quell_core::time::saturating_nanos;
use quell_shares::ledger::{Left, Snapshot, SnapshotAccount};
use quell_shares::message::Held;
use quell_shares::plan::{LimitId, MemberId};
use quell_shares::schedule::{LEASE_STEPS, Right};

use super::{CodecError, CodecKind, decode, encode};

/// The bytes of a part: below what the store takes at once.
const PART: usize = 1_024 * 1_024;

/// The most parts: writing more takes longer than a successor needs to learn.
const MAX_PARTS: usize = 32;

#[derive(Clone, PartialEq, Message)]
struct PartMessage {
    #[prost(uint64, tag = "1")]
    epoch: u64,
    #[prost(uint32, tag = "2")]
    part: u32,
    #[prost(uint32, tag = "3")]
    parts: u32,
    #[prost(message, repeated, tag = "4")]
    accounts: Vec<AccountMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct AccountMessage {
    #[prost(uint32, tag = "1")]
    member: u32,
    #[prost(uint64, tag = "2")]
    incarnation: u64,
    #[prost(message, repeated, tag = "3")]
    limits: Vec<LeftMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct LeftMessage {
    #[prost(uint64, tag = "1")]
    limit: u64,
    #[prost(message, repeated, tag = "2")]
    leases: Vec<LeaseMessage>,
    #[prost(message, optional, tag = "3")]
    gap: Option<RightMessage>,
    /// Durations are in nanoseconds.
    #[prost(uint64, tag = "4")]
    base_in: u64,
    #[prost(message, optional, tag = "5")]
    base: Option<RightMessage>,
    #[prost(uint64, tag = "6")]
    base_for: u64,
    #[prost(message, optional, tag = "7")]
    floor: Option<RightMessage>,
    #[prost(uint64, optional, tag = "8")]
    floor_for: Option<u64>,
    #[prost(message, optional, tag = "9")]
    whole: Option<RightMessage>,
    #[prost(uint64, tag = "10")]
    sure: u64,
    #[prost(uint64, tag = "11")]
    revision: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct RightMessage {
    #[prost(uint64, tag = "1")]
    rate: u64,
    #[prost(uint64, tag = "2")]
    burst: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct LeaseMessage {
    #[prost(uint64, tag = "1")]
    rate: u64,
    #[prost(uint64, tag = "2")]
    burst: u64,
    #[prost(uint64, tag = "3")]
    left: u64,
}

/// Encodes what a leader hands over, in parts that the store takes. `None` if it is too large for that: a
/// successor then learns from the members.
#[must_use]
pub fn encode_snapshot(snapshot: &Snapshot) -> Option<Vec<Vec<u8>>> {
    let mut groups: Vec<Vec<AccountMessage>> = vec![Vec::new()];
    let mut bytes = 0;
    for account in &snapshot.accounts {
        let account = AccountMessage::new(account);
        // With its tag and length.
        let size = account.encoded_len() + 8;
        if size > PART || groups.len() > MAX_PARTS {
            return None;
        }
        if bytes + size > PART {
            groups.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        groups.last_mut()?.push(account);
    }
    let parts = u32::try_from(groups.len()).ok()?;
    let part = |(part, accounts)| PartMessage {
        epoch: snapshot.epoch,
        part,
        parts,
        accounts,
    };
    let messages = (0..parts).zip(groups).map(part);
    Some(
        messages
            .map(|part| encode(CodecKind::Snapshot, &part))
            .collect(),
    )
}

/// Decodes the parts of a hand-over. `None` if not all of them are there: then nothing was handed over.
///
/// # Errors
/// [`CodecError`].
pub fn decode_snapshot<'a>(
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Option<Snapshot>, CodecError> {
    let mut all: Vec<PartMessage> = Vec::new();
    for bytes in parts {
        all.push(decode(CodecKind::Snapshot, bytes)?);
    }
    all.sort_by_key(|part| part.part);
    let Some(first) = all.first() else {
        return Ok(None);
    };
    let (epoch, parts) = (first.epoch, first.parts);
    let fits = |(at, part): (u32, &PartMessage)| {
        part.part == at && part.parts == parts && part.epoch == epoch
    };
    if u32::try_from(all.len()) != Ok(parts) || !(0..parts).zip(&all).all(fits) {
        return Ok(None);
    }
    let accounts = all.into_iter().flat_map(|part| part.accounts);
    let accounts = accounts.map(AccountMessage::account);
    Ok(Some(Snapshot {
        epoch,
        accounts: accounts.collect::<Result<_, _>>()?,
    }))
}

impl AccountMessage {
    fn new(account: &SnapshotAccount) -> Self {
        Self {
            member: account.member.0,
            incarnation: account.incarnation,
            limits: account.limits.iter().map(LeftMessage::new).collect(),
        }
    }

    fn account(self) -> Result<SnapshotAccount, CodecError> {
        let limits = self.limits.into_iter().map(LeftMessage::left);
        Ok(SnapshotAccount {
            member: MemberId(self.member),
            incarnation: self.incarnation,
            limits: limits.collect::<Result<_, _>>()?,
        })
    }
}

impl LeftMessage {
    fn new(left: &Left) -> Self {
        let held = &left.held;
        let lease = |(right, left): &(Right, Duration)| LeaseMessage {
            rate: right.rate,
            burst: right.burst,
            left: saturating_nanos(*left),
        };
        Self {
            limit: held.limit.0,
            leases: held.leases.iter().map(lease).collect(),
            gap: RightMessage::new(held.gap),
            base_in: saturating_nanos(held.base_in),
            base: RightMessage::new(held.base),
            base_for: saturating_nanos(held.base_for),
            floor: RightMessage::new(held.floor),
            floor_for: held.floor_for.map(saturating_nanos),
            whole: RightMessage::new(held.whole),
            sure: left.sure,
            revision: left.revision,
        }
    }

    fn left(self) -> Result<Left, CodecError> {
        if self.leases.len() > LEASE_STEPS {
            return Err(CodecError::Damaged("a hand-over has too many leases"));
        }
        let mut leases = [(Right::NONE, Duration::ZERO); LEASE_STEPS];
        for (lease, message) in leases.iter_mut().zip(self.leases) {
            let LeaseMessage { rate, burst, left } = message;
            *lease = (Right { rate, burst }, Duration::from_nanos(left));
        }
        let right = |message: Option<RightMessage>| {
            let RightMessage { rate, burst } = message.unwrap_or_default();
            Right { rate, burst }
        };
        let held = Held {
            limit: LimitId(self.limit),
            leases,
            gap: right(self.gap),
            base_in: Duration::from_nanos(self.base_in),
            base: right(self.base),
            base_for: Duration::from_nanos(self.base_for),
            floor: right(self.floor),
            floor_for: self.floor_for.map(Duration::from_nanos),
            whole: right(self.whole),
        };
        Ok(Left {
            held,
            sure: self.sure,
            revision: self.revision,
        })
    }
}

impl RightMessage {
    fn new(right: Right) -> Option<Self> {
        let Right { rate, burst } = right;
        (right != Right::NONE).then_some(Self { rate, burst })
    }
}

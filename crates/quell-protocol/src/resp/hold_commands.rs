//! `QUELL.RESERVE domain id hold_ms [COST n] k v [k v ..]`, and the commands that end a hold.

use std::time::Duration;

use quell_core::descriptor::Query;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::query_bounds::check_descriptors;

use super::args::Args;
use super::error::CommandError;
use super::number::natural;
use super::question;

/// A query whose cost is an estimate.
#[derive(Clone, Debug)]
pub struct Reserve<'a> {
    /// The query.
    pub query: Query<'a>,
    /// Its id; `None` if the caller wrote `*`, which asks for a generated one.
    pub id: Option<&'a str>,
    /// Time for which the reservation can be settled.
    pub hold: Duration,
}

/// The end of a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndCommand<'a> {
    /// The domain in which it is held.
    pub domain: &'a str,
    /// Its id.
    pub id: &'a str,
    /// End of the hold.
    pub ending: Ending,
}

impl<'a> Reserve<'a> {
    /// Reads the arguments after the command's name; there are at least three.
    pub(super) fn parse(args: Args<'a>) -> Result<Self, CommandError> {
        let domain = question::domain(args)?;
        let id = match args.get(1) {
            Some(b"*") => None,
            _ => Some(id(domain, args)?),
        };
        let hold = args.get(2).and_then(natural);
        let hold = hold.ok_or(CommandError::HoldLength)?;
        Ok(Self {
            query: question::parse_rest("QUELL.RESERVE", domain, args.skip(3))?,
            id,
            hold: Duration::from_millis(hold),
        })
    }
}

impl<'a> EndCommand<'a> {
    /// Reads the arguments after the command's name; there are at least two.
    pub(super) fn parse(ending: Ending, args: Args<'a>) -> Result<Self, CommandError> {
        let domain = question::domain(args)?;
        let id = id(domain, args)?;
        Ok(Self { domain, id, ending })
    }

    /// Reads `domain id actual [actual ..]`.
    pub(super) fn settle(args: Args<'a>) -> Result<Self, CommandError> {
        let mut actual = args.skip(2);
        check_descriptors(actual.len())?;
        let mut units = Vec::with_capacity(actual.len());
        while let Some(one) = actual.get(0) {
            units.push(natural(one).ok_or(CommandError::Actual)?);
            actual = actual.skip(1);
        }
        Self::parse(Ending::Settle(units.into()), args)
    }

    /// Reads `domain id [FAILED]`.
    pub(super) fn release(args: Args<'a>) -> Result<Self, CommandError> {
        let ending = match args.get(2) {
            None => Ending::Release,
            Some(word) if word.eq_ignore_ascii_case(b"FAILED") => Ending::Fail,
            Some(_) => return Err(CommandError::Failed),
        };
        Self::parse(ending, args)
    }
}

fn id<'a>(domain: &str, args: Args<'a>) -> Result<&'a str, CommandError> {
    let id = args.get(1).unwrap_or_default();
    let id = std::str::from_utf8(id).map_err(|_| CommandError::HoldId)?;
    match HoldId::new(domain, id) {
        Some(_) => Ok(id),
        None => Err(CommandError::HoldId),
    }
}

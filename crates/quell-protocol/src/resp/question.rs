//! `QUELL.ACQUIRE domain [COST n] k v [k v ..]` and `QUELL.PEEK`: a query of one descriptor.
//!
//! After the domain, `COST` in any case is the keyword. To send an entry of that name, write another entry
//! before it, or `COST 1`.

use std::borrow::Cow;

use quell_core::descriptor::{Descriptor, Query};

use super::args::Args;
use super::error::CommandError;
use super::number::natural;
use quell_core::query_bounds::{QueryError, check_cost, check_domain, push_entry};

/// Reads the arguments after the command's name; there is at least one.
pub(super) fn parse<'a>(name: &'static str, args: Args<'a>) -> Result<Query<'a>, CommandError> {
    parse_rest(name, domain(args)?, args.skip(1))
}

/// The first argument.
pub(super) fn domain(args: Args<'_>) -> Result<&str, CommandError> {
    let domain = args.get(0).unwrap_or_default();
    let domain = std::str::from_utf8(domain).map_err(|_| QueryError::BinaryDomain)?;
    check_domain(domain)?;
    Ok(domain)
}

/// Reads `[COST n] k v [k v ..]`.
pub(super) fn parse_rest<'a>(
    name: &'static str,
    domain: &'a str,
    args: Args<'a>,
) -> Result<Query<'a>, CommandError> {
    let mut descriptor = Descriptor::new();
    let mut rest = args;
    if rest
        .get(0)
        .is_some_and(|word| word.eq_ignore_ascii_case(b"COST"))
    {
        let units = rest
            .get(1)
            .and_then(natural)
            .ok_or(CommandError::Cost { command: name })?;
        descriptor.cost = check_cost(units)?;
        rest = rest.skip(2);
    }
    if !rest.len().is_multiple_of(2) {
        return Err(CommandError::OddEntries { command: name });
    }
    while let (Some(name), Some(value)) = (rest.get(0), rest.get(1)) {
        rest = rest.skip(2);
        let name = std::str::from_utf8(name).map_err(|_| QueryError::BinaryName)?;
        push_entry(&mut descriptor, Cow::Borrowed(name), Cow::Borrowed(value))?;
    }
    Ok(Query::with_descriptors(domain, vec![descriptor]))
}

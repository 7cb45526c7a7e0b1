//! Reserve, as written: the entries of a reservation, and how long it lasts.

use std::time::Duration;

use quell_core::hold::MAX_HOLD;
use quell_core::rule::Reserve;

use super::name;
use crate::cursor::Cursor;
use crate::duration;
use crate::fields::RESERVATION;
use crate::path::Spanned;
use crate::problem::Sink;

/// Reads `reserve`.
pub(super) fn read(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Spanned<Reserve>> {
    let fields = cursor.fields(&RESERVATION, sink)?;
    let unsaid = Reserve::default();
    let entry = |text: &str| name(text, "entry name");
    let reserve = Reserve {
        phase: fields.value("phase", sink, entry).unwrap_or(unsaid.phase),
        id: fields.value("id", sink, entry).unwrap_or(unsaid.id),
        ttl: fields.value("ttl", sink, ttl).unwrap_or(unsaid.ttl),
    };
    if reserve.phase == reserve.id {
        let message = "one entry says the phase, another the reservation: write two names";
        cursor.problem(message, sink);
    }
    Some(cursor.spanned(reserve))
}

fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration::parse(text)?;
    match ttl.is_zero() || ttl > MAX_HOLD {
        true => Err("a call takes longer than 0 and at most a day: write 120s or so".to_owned()),
        false => Ok(ttl),
    }
}

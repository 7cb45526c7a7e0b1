//! Pointers in the store: read, written, prolonged, and left to expire.

use std::time::Duration;

use crate::resp::{Value, cmd};
use quell_core::hold::HoldId;

use crate::answer::strange;
use crate::link::Failure;
use crate::pointer::Pointer;
use crate::script::POINT;
use crate::servers::Servers;

/// Time that it may take to shorten the life of a pointer, in the background.
const EXPIRE_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the pointer of an id.
pub(crate) async fn fetch(servers: &Servers, id: &HoldId) -> Result<Option<Pointer>, Failure> {
    let name = servers.names.pointer(id.as_bytes());
    servers.in_time(&name, fetch_unawaited(servers, id)).await
}

/// Reads it in the background, also while the server is known to be gone.
pub(crate) async fn fetch_unawaited(
    servers: &Servers,
    id: &HoldId,
) -> Result<Option<Pointer>, Failure> {
    let name = servers.names.pointer(id.as_bytes());
    let get = (&*cmd("GET").arg(name.as_slice())).into();
    match servers.link.call(&name, get).await? {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Pointer::parse(&bytes).map(Some),
        reply => Err(strange(&reply)),
    }
}

/// Writes a pointer if the store has none or the `expected` one; otherwise returns what it has.
pub(crate) async fn write(
    servers: &Servers,
    id: &HoldId,
    pointer: &Pointer,
    expected: &[u8],
    wait: Duration,
) -> Result<Option<Vec<u8>>, Failure> {
    let name = servers.names.pointer(id.as_bytes());
    if let Some(isolation) = &servers.test_isolation {
        isolation.note_names([name.clone()]);
    }
    let written = pointer.write();
    let expiry = pointer.expiry(wait).max(servers.clock.min_expiry());
    let arguments = [
        expiry.to_string().into_bytes(),
        expected.to_vec(),
        written.clone(),
    ];
    match servers.run(&POINT, &[name], &arguments).await? {
        Value::BulkString(stands) if stands == written => Ok(None),
        Value::BulkString(stands) => Ok(Some(stands)),
        reply => Err(strange(&reply)),
    }
}

/// Prolongs a pointer for holds that begin after `wait`. If that fails, the pointer still lives for three
/// minutes longer than the renewed lease, and the next renewal tries again.
pub(crate) async fn prolong(servers: &Servers, id: &HoldId, pointer: &Pointer, wait: Duration) {
    if pointer.keep.is_zero() {
        return;
    }
    if let Err(failure) = write(servers, id, pointer, &pointer.write(), wait).await {
        tracing::debug!(%failure, ?id, "the pointer of a hold could not be prolonged");
    }
}

/// Lets the pointer of a hold that is over expire together with the hold's record, in the
/// background.
pub(crate) fn expire(servers: &Servers, id: &HoldId, pointer: &Pointer) {
    if pointer.keep.is_zero() {
        return;
    }
    let name = servers.names.pointer(id.as_bytes());
    let expiry = Pointer::rest().max(servers.clock.min_expiry());
    let link = servers.link.clone();
    tokio::spawn(async move {
        let mut expire = cmd("PEXPIRE");
        expire.arg(name.as_slice()).arg(expiry);
        // If that fails, it lives as long as the hold would have.
        let call = tokio::time::timeout(EXPIRE_TIMEOUT, link.call(&name, (&expire).into()));
        call.await.ok();
    });
}

//! Lets the nodes of one store know which of them have not repaid yet what they admitted during an outage.

use std::time::Duration;

use redis::Value;

use crate::link::Failure;
use crate::store::RedisStore;

/// A node counts as owing for this long after it said so; it says so again every half a second.
const TTL: Duration = Duration::from_secs(3);

/// Says whether `node` still owes something, and hears whether any other does.
pub(crate) async fn others_owe(store: &RedisStore, node: u64, owes: bool) -> Result<bool, Failure> {
    let list = [store.names.owing()];
    let kept = if owes { TTL.as_millis() } else { 0 };
    let arguments = [
        format!("{node:016x}").into_bytes(),
        kept.to_string().into_bytes(),
    ];
    let others = store.run(&store.scripts.unpaid_nodes, &list, &arguments);
    Ok(matches!(others.await?, Value::Int(others) if others > 0))
}

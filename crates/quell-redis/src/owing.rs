//! Owing: how nodes of one store know that others have not charged it yet what they let pass without it.

use std::time::Duration;

use redis::Value;

use crate::link::Failure;
use crate::store::RedisStore;

/// A node counts as owing for this long after it said so; it says so again every half a second.
const KEPT: Duration = Duration::from_secs(3);

impl RedisStore {
    /// Says whether `node` still owes something, and hears whether any other does.
    pub(crate) async fn others_owe(&self, node: u64, owes: bool) -> Result<bool, Failure> {
        let list = [self.names.owing()];
        let kept = if owes { KEPT.as_millis() } else { 0 };
        let arguments = [
            format!("{node:016x}").into_bytes(),
            kept.to_string().into_bytes(),
        ];
        let said = self.scripts.owing.run(&self.link, &list, &arguments);
        let [name] = &list;
        let others = self.in_time(name, said).await?;
        Ok(matches!(others, Value::Int(others) if others > 0))
    }
}

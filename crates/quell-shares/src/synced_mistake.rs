//! Deliberate mistakes of a synced key and its store, to check that the simulator would notice them.

crate::lease_mistake::mistakes! {
    /// A deliberate mistake of a synced key or its store.
    SyncedMistake:
    NoCap "no-cap" "A node admits as much as the store had left, whatever is not charged yet.",
    LossIsPaid "loss-is-paid" "What was sent counts as charged although there was no answer.",
    RestIsPaid "rest-is-paid" "What is not charged is forgotten once the store's last answer says that the key is at rest.",
    AssumesPaid "assumes-paid" "What was sent counts as charged, whatever the store says.",
    OldAnswer "old-answer" "An answer to an earlier request is taken for that of the present one.",
    NoBase "no-base" "What is known to be charged is not sent along.",
    NoRecord "no-record" "The store keeps no record of what it has charged of a total.",
    SameId "same-id" "A process that starts again goes on under the id of the last one, from nothing.",
    DropsPending "drops-pending" "What is not charged yet is forgotten when the limit changes.",
    TellsUndecided "tells-undecided" "The store is told of calls that another limit may still refuse.",
}

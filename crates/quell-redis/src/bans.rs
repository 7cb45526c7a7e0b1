//! Bans: the list of banned keys, by their names.
//!
//! A state's name in Redis does not say what the key was, so a key whose ban begins is put on a list
//! in a command of its own. A ban whose server dies in between stands all the same and is only not
//! listed. Whoever reads the list looks at the states, so what was lifted meanwhile does not show.

use std::collections::HashSet;
use std::time::Duration;

use quell::store::Banned;
use quell::store::memory::MAX_NAMED_BANS;
use quell_core::key::{Key, KeyName};
use quell_core::time::Now;
use redis::{Cmd, Value};

use crate::answer::Reply;
use crate::link::Failure;
use crate::store::{RedisStore, Request};

/// Names that are read at once, and states that are looked at in one call: a fraction of a millisecond
/// of the server's time. Of the longest names (64 values of 8 KiB) they are half of the longest reply
/// that is taken.
const PAGE: usize = 64;

/// The list of banned keys in one store.
#[derive(Debug)]
pub(crate) struct Bans<'a> {
    store: &'a RedisStore,
}

impl RedisStore {
    /// Lists `key` as banned until an instant of the store's clock.
    pub(crate) async fn name_ban(&self, key: Key<'_>, until: u64, now: u64) {
        let list = [self.names.bans()];
        let arguments = [
            member(key),
            text(until),
            text(now),
            text(MAX_NAMED_BANS as u64),
            text(self.shortest_expiry()),
        ];
        let named = self.scripts.name_ban.run(&self.link, &list, &arguments);
        let [name] = &list;
        if let Err(failure) = self.in_time(name, named).await {
            tracing::debug!(%failure, "a ban stands but is not listed");
        }
    }
}

impl<'a> Bans<'a> {
    pub(crate) const fn new(store: &'a RedisStore) -> Self {
        Self { store }
    }

    /// Bans that stand, the longest first, at most `most`.
    pub(crate) async fn list(&self, most: usize, now: Now) -> Result<Vec<Banned>, Failure> {
        let most = most.min(MAX_NAMED_BANS);
        let mut bans = Vec::new();
        let mut seen = HashSet::new();
        let mut start = 0;
        while bans.len() < most {
            let page = self.page(start).await?;
            let mut listed = Vec::with_capacity(page.len());
            for member in &page {
                match self.read(member) {
                    Some((state, key)) => listed.push((member, state, key)),
                    None => self.drop(member).await?,
                }
            }
            let states: Vec<_> = listed.iter().map(|(_, state, _)| state.clone()).collect();
            let left = self.left(&states, now).await?;
            for ((member, state, key), left) in listed.into_iter().zip(left) {
                if left == 0 {
                    self.drop(member).await?;
                    continue;
                }
                start += 1;
                // A ban that began meanwhile moves some that were read into the next page.
                if seen.insert(state) {
                    let left = Duration::from_micros(left);
                    bans.push(Banned { key, left });
                }
            }
            if page.len() < PAGE {
                break;
            }
        }
        bans.sort_by_key(|ban| std::cmp::Reverse(ban.left));
        bans.truncate(most);
        Ok(bans)
    }

    /// The members from rank `start` on, the last to end first.
    async fn page(&self, start: usize) -> Result<Vec<Vec<u8>>, Failure> {
        let list = self.store.names.bans();
        let mut range = Cmd::new();
        range.arg("ZREVRANGE").arg(list.as_slice());
        range.arg(start).arg(start + PAGE - 1);
        let members = self.store.link.call(&list, &range);
        match self.store.in_time(&list, members).await {
            // Something else stands there, until the next ban begins.
            Err(Failure::Foreign(_)) => Ok(Vec::new()),
            Err(failure) => Err(failure),
            Ok(Value::Array(members)) => Ok(members
                .into_iter()
                .filter_map(|member| match member {
                    Value::BulkString(bytes) => Some(bytes),
                    _ => None,
                })
                .collect()),
            Ok(_) => Ok(Vec::new()),
        }
    }

    /// The name of the state that a member stands for, and its key as it is shown.
    fn read(&self, member: &[u8]) -> Option<(Vec<u8>, KeyName)> {
        let (scope, key) = split(member)?;
        let state = self.store.names.of_parts(key, scope);
        Some((state, KeyName::parse(key)?))
    }

    /// How much longer the bans in these states stand, in microseconds.
    async fn left(&self, names: &[Vec<u8>], now: Now) -> Result<Vec<u64>, Failure> {
        let store = self.store;
        let head = [store.head(Request::Look, Duration::ZERO, now)];
        let mut left = Vec::with_capacity(names.len());
        for keys in store.link.together(names) {
            match self.left_of(keys, &head).await {
                // Something else stands under one of them. It is no ban, and is replaced when its key
                // is charged.
                Err(Failure::Foreign(_)) => {
                    for key in keys {
                        match self.left_of(std::slice::from_ref(key), &head).await {
                            Err(Failure::Foreign(_)) => left.push(0),
                            one => left.extend(one?),
                        }
                    }
                }
                all => left.extend(all?),
            }
        }
        Ok(left)
    }

    async fn left_of(&self, keys: &[Vec<u8>], head: &[Vec<u8>]) -> Result<Vec<u64>, Failure> {
        let store = self.store;
        let first = keys.first().map_or(&[][..], Vec::as_slice);
        let asked = store.scripts.ask(&store.link, keys, head);
        let reply = store.in_time(first, asked).await?;
        let mut reply = Reply::of(&reply);
        // The clock, and then the bans.
        let mut number = || reply.as_mut()?.natural();
        let clock = number();
        let left: Vec<_> = keys.iter().map_while(|_| number()).collect();
        if clock.is_none() || left.len() != keys.len() {
            return Err(Failure::Refused("no list of bans".to_owned()));
        }
        Ok(left)
    }

    async fn drop(&self, member: &[u8]) -> Result<(), Failure> {
        let list = self.store.names.bans();
        let mut remove = Cmd::new();
        remove.arg("ZREM").arg(list.as_slice()).arg(member);
        let removed = self.store.link.call(&list, &remove);
        self.store.in_time(&list, removed).await.map(|_| ())
    }
}

/// A key with the length of its scope before it.
fn member(key: Key<'_>) -> Vec<u8> {
    let scope = u32::try_from(key.scope().len()).unwrap_or(u32::MAX);
    [&scope.to_be_bytes(), key.as_bytes()].concat()
}

fn split(member: &[u8]) -> Option<(usize, &[u8])> {
    let (scope, key) = member.split_first_chunk::<4>()?;
    Some((usize::try_from(u32::from_be_bytes(*scope)).ok()?, key))
}

fn text(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

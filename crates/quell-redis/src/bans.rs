//! The list of banned keys, by name.
//!
//! The name of a state in Redis does not contain the key, so when a ban begins its key is added to a
//! list by a command of its own. If this process ends in between, the ban is in force but not listed.
//! A reader of the list checks each state, so bans that were lifted meanwhile are left out.
//!
//! Callers choose the values of keys, so long ones are cut. The state's name cannot be computed from a
//! cut key and is stored beside it.
//!
//! A domain has at most half of the names that others leave, as in memory, so who may ask in one takes no names of
//! another. Beside the list lies how many each domain has; a script keeps both in step.
//!
//! Why it stands, in an operator's words or by which refusal, lies beside the ban's state, with the instant at which
//! that ban ends. A ban that ends
//! at another instant is another ban, so whoever bans, lifts or forgives leaves the reason alone: it expires.

use std::sync::Arc;
use std::time::Duration;

use crate::resp::{Cmd, FromValue, cmd};
use futures_util::future::try_join;
use quell::store::memory::MAX_NAMED_BANS;
use quell::store::{BanList, BanPage, BanPlace, BanSource, Banned};
use quell_core::charge::LimitSet;
use quell_core::key::{Key, KeyName, shortened};
use quell_core::time::Now;
use sha2::{Digest, Sha256};

use crate::answer::{RawDecision, Reply};
use crate::encode::micros_up;
use crate::link::Failure;
use crate::opcode::{Opcode, StoreClock};
use crate::script::{BAN_REASONS, DROP_NAME, NAME_BAN, ScriptArgs};
use crate::servers::Servers;

/// Names that are read in one call: 0.1 ms of the server's time (docs/redis.md has how that was measured). With the
/// longest names (64 values of some 80 bytes) the reply has 350 kB.
const NAMES: usize = 64;

/// States that are looked at in one call: 0.4 ms of the server's time, in which it answers nobody else.
const STATES: usize = 8;

/// Names that a page passes over at most because nobody asked for them: each call for them is short, and a reader
/// goes on from there.
const MAX_PASSED: usize = 20_000;

/// Meaning of a member of the list.
enum Listing {
    /// No ban in force: it leaves the list.
    Gone,
    /// Not wanted, or not looked at.
    Passed,
    Banned(Banned),
}

/// The list of banned keys in one store.
#[derive(Debug)]
pub(crate) struct Bans<'a> {
    servers: &'a Servers,
}

impl<'a> Bans<'a> {
    pub(crate) const fn new(servers: &'a Servers) -> Self {
        Self { servers }
    }

    /// The member of the list for a key: eight bytes for its domain, the name of its state after its length, and
    /// the key with long values cut.
    fn member(&self, key: Key<'_>) -> Vec<u8> {
        let state = self.servers.names.of(key);
        let short = shortened(key.as_bytes(), &mark(key.as_bytes()));
        let domain = KeyName::parse(&short).map(|name| Sha256::digest(name.domain));
        let domain = domain.and_then(|hash| hash.first_chunk().copied());
        let length = u16::try_from(state.len()).unwrap_or(u16::MAX);
        let domain: [u8; 8] = domain.unwrap_or_default();
        [&domain, length.to_be_bytes().as_slice(), &state, &short].concat()
    }

    /// Removes `key`, whose ban was lifted, from the list.
    pub(crate) async fn forget(&self, key: Key<'_>) {
        if let Err(failure) = self.drop_name(self.member(key)).await {
            tracing::debug!(%failure, "a lifted ban stays on the list until the list is read");
        }
    }

    /// Lists keys whose ban began. The bans are in force whether or not that works.
    pub(crate) async fn list_new(&self, set: &LimitSet<'_>, raw: &[RawDecision]) {
        for (charge, raw) in set.charges().iter().zip(raw) {
            if raw.starts_ban() {
                let until = raw.now.saturating_add(raw.ban_left);
                let key = set.key(charge);
                self.add(key, until, raw.now).await;
                let length = Duration::from_micros(raw.ban_left);
                if let Some(cause) = Banned::text_of(&charge.active.limit, length) {
                    self.explain(key, until, length, &cause).await;
                }
            }
        }
    }

    /// Lists `key` as banned until an instant of the store's clock.
    pub(crate) async fn add(&self, key: Key<'_>, until: u64, now: u64) {
        let arguments = [
            self.member(key),
            text(until),
            text(now),
            text(MAX_NAMED_BANS as u64),
            text(self.servers.clock.min_expiry()),
        ];
        let list = self.servers.names.bans();
        let named = self.servers.run(&NAME_BAN, &list, &arguments);
        if let Err(failure) = named.await {
            tracing::debug!(%failure, "a ban is in force but not listed");
        }
    }

    /// Keeps why `key` is banned for `length`, until an instant of the store's clock.
    pub(crate) async fn explain(&self, key: Key<'_>, until: u64, length: Duration, reason: &str) {
        let names = &self.servers.names;
        let name = names.ban_reason(&names.of(key));
        let expiry = micros_up(length).div_ceil(1_000);
        let mut keep = cmd("PSETEX");
        keep.arg(&name)
            .arg(expiry.max(self.servers.clock.min_expiry()))
            .arg(format!("{until} {reason}"));
        if let Err(failure) = self.servers.call(&name, &keep).await {
            tracing::debug!(%failure, "a ban is in force, but its reason is not stored");
        }
        if let Some(isolation) = &self.servers.test_isolation {
            isolation.note_names([name]);
        }
    }

    /// The next wanted bans of a page. Names are read before states, which cost more: those of bans that are not
    /// wanted are passed over, at most so many.
    pub(crate) async fn page(&self, page: &BanPage<'_>, now: Now) -> Result<BanList, Failure> {
        let mut found = BanList::new();
        let source = BanSource::Shared;
        let [list, _] = self.servers.names.bans();
        let mut place = page.from.place(source);
        let (mut left_to_find, mut passed) = (page.most, 0);
        while place != BanPlace::End && left_to_find > 0 && passed < MAX_PASSED {
            let names = self.names_from(&list, place).await?;
            passed += names.len();
            let is_last = names.len() < NAMES;
            let bans = self.read_names(&names, (page, left_to_find), now).await?;
            let (mut gone, mut reached) = (Vec::new(), 0);
            for ((member, until), ban) in names.iter().zip(bans) {
                if left_to_find == 0 {
                    break;
                }
                reached += 1;
                match ban {
                    // What leaves the list is behind nobody.
                    Listing::Gone => gone.push(member),
                    Listing::Passed => place = place.behind(*until),
                    Listing::Banned(ban) => {
                        place = place.behind(*until);
                        left_to_find -= 1;
                        found.push(source, ban, place);
                    }
                }
            }
            for member in gone {
                self.drop_name(member.clone()).await?;
            }
            if is_last && reached == names.len() {
                place = BanPlace::End;
            }
        }
        found.read_to(source, place);
        Ok(found)
    }

    /// The next members of a list and when their bans end, by the list.
    async fn names_from(
        &self,
        list: &[u8],
        place: BanPlace,
    ) -> Result<Vec<(Vec<u8>, u64)>, Failure> {
        let start = match place {
            BanPlace::Start => 0,
            BanPlace::Behind { until, count } => {
                let mut later = cmd("ZCOUNT");
                later.arg(list).arg(format!("({until}")).arg("+inf");
                let later: Option<u64> = self.read_list(list, &later).await?;
                later.unwrap_or_default().saturating_add(count)
            }
            BanPlace::End => return Ok(Vec::new()),
        };
        let end = start.saturating_add(NAMES as u64 - 1);
        let mut range = cmd("ZREVRANGE");
        range.arg(list).arg(start).arg(end).arg("WITHSCORES");
        // Each member is followed by its score.
        let names: Option<Vec<Vec<u8>>> = self.read_list(list, &range).await?;
        let mut names = names.unwrap_or_default().into_iter();
        let mut members = Vec::new();
        while let (Some(member), Some(until)) = (names.next(), names.next()) {
            let until = str::from_utf8(&until).ok().and_then(|it| it.parse().ok());
            members.push((member, whole(until.unwrap_or_default())));
        }
        Ok(members)
    }

    /// Reads these members, up to the one with which as many bans are found as are left to find.
    async fn read_names(
        &self,
        names: &[(Vec<u8>, u64)],
        (page, most): (&BanPage<'_>, usize),
        now: Now,
    ) -> Result<Vec<Listing>, Failure> {
        let mut all = Vec::with_capacity(names.len());
        let (mut wanted, mut states) = (Vec::new(), Vec::new());
        for (member, _) in names {
            all.push(match read(member) {
                None => Listing::Gone,
                Some((state, key)) if (page.wants)(&key.domain) => {
                    wanted.push((all.len(), key));
                    states.push(state);
                    Listing::Passed
                }
                Some(_) => Listing::Passed,
            });
        }
        let (mut wanted, mut count) = (wanted.into_iter(), 0);
        for states in states.chunks(STATES) {
            if count >= most {
                break;
            }
            let bans = self.in_force(states, now).await?;
            // In this order: what comes first is asked once more than it has.
            for ((left, reason), (index, key)) in bans.into_iter().zip(wanted.by_ref()) {
                let left = Duration::from_micros(left);
                count += usize::from(!left.is_zero());
                if let Some(listing) = all.get_mut(index) {
                    *listing = match left.is_zero() {
                        true => Listing::Gone,
                        false => Listing::Banned(Banned::with_text(key, left, reason)),
                    };
                }
            }
        }
        Ok(all)
    }

    /// Number of listed bans that are not over.
    pub(crate) async fn count(&self, now: Now) -> Result<usize, Failure> {
        let [list, _] = self.servers.names.bans();
        let now = match self.servers.clock {
            StoreClock::Caller => now.monotonic.as_nanos() / 1_000,
            StoreClock::Own => self.clock(&list).await?,
        };
        let mut count = cmd("ZCOUNT");
        count.arg(&list).arg(format!("({now}")).arg("+inf");
        Ok(self.read_list(&list, &count).await?.unwrap_or_default())
    }

    /// Reads a list; `None` if its key has a foreign value, which the next ban replaces.
    async fn read_list<T: FromValue>(
        &self,
        list: &[u8],
        command: &Cmd,
    ) -> Result<Option<T>, Failure> {
        match self.servers.call(list, command).await {
            Ok(reply) => Ok(reply.read()),
            Err(Failure::Foreign(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The clock of the server that has `list`, in microseconds.
    async fn clock(&self, list: &[u8]) -> Result<u64, Failure> {
        let time = self.servers.call(list, &cmd("TIME")).await?;
        let time = time.read::<(u64, u64)>();
        let (seconds, micros) = time.ok_or_else(|| Failure::Refused("no time".to_owned()))?;
        Ok(seconds.saturating_mul(1_000_000) + micros)
    }

    /// The ban in each of these states: how much longer it lasts, in microseconds, and an operator's reason.
    pub(crate) async fn in_force(
        &self,
        names: &[Vec<u8>],
        now: Now,
    ) -> Result<Vec<(u64, Option<Box<str>>)>, Failure> {
        let ends = Box::pin(self.ends(names, now));
        let texts = Box::pin(self.reasons(names));
        let (ends, texts) = try_join(ends, texts).await?;
        let bans = ends.into_iter().zip(texts);
        Ok(bans
            .map(|((left, until), text)| (left, reason_until(&text, until)))
            .collect())
    }

    /// Entries beside each of these states: a reason, and the end of its ban.
    async fn reasons(&self, names: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Failure> {
        let servers = self.servers;
        let kept = names.iter().map(|name| servers.names.ban_reason(name));
        let kept: Vec<_> = kept.collect();
        let mut texts = Vec::with_capacity(names.len());
        for keys in servers.link.together(&kept) {
            let reply = servers.run(&BAN_REASONS, keys, &[]).await?;
            let mut read: Vec<Vec<u8>> = reply.read().unwrap_or_default();
            read.resize(keys.len(), Vec::new());
            texts.extend(read);
        }
        Ok(texts)
    }

    /// Time left of the bans in these states, and their ends, in microseconds.
    async fn ends(&self, names: &[Vec<u8>], now: Now) -> Result<Vec<(u64, u64)>, Failure> {
        let servers = self.servers;
        let head = [servers.clock.head(Opcode::Look, Duration::ZERO, now)];
        let mut ends = Vec::with_capacity(names.len());
        for keys in servers.link.together(names) {
            match self.ends_of(keys, &head).await {
                // One of them has a foreign value. It is not a ban, and is replaced when its key is
                // charged.
                Err(Failure::Foreign(_)) => {
                    for key in keys {
                        match self.ends_of(std::slice::from_ref(key), &head).await {
                            Err(Failure::Foreign(_)) => ends.push((0, 0)),
                            one => ends.extend(one?),
                        }
                    }
                }
                all => ends.extend(all?),
            }
        }
        Ok(ends)
    }

    async fn ends_of(
        &self,
        keys: &[Vec<u8>],
        head: &[Vec<u8>],
    ) -> Result<Vec<(u64, u64)>, Failure> {
        let args = Arc::new(ScriptArgs::new(keys.to_vec(), head.to_vec()));
        let looked = self.servers.batcher.ask(&args);
        let reply = self.servers.in_time(args.key(), looked).await?;
        let mut reply = Reply::new(&reply);
        // First the clock, then the bans.
        let mut number = || reply.as_mut()?.natural();
        let ends = number().map(|clock| {
            let left = keys.iter().map_while(|_| number());
            left.map(|left| (left, clock.saturating_add(left)))
                .collect::<Vec<_>>()
        });
        ends.filter(|ends| ends.len() == keys.len())
            .ok_or_else(|| Failure::Refused("no list of bans".to_owned()))
    }

    async fn drop_name(&self, member: Vec<u8>) -> Result<(), Failure> {
        let list = self.servers.names.bans();
        self.servers.run(&DROP_NAME, &list, &[member]).await?;
        Ok(())
    }
}

/// The reason in a text, if it is that of the ban which ends at `until`.
fn reason_until(text: &[u8], until: u64) -> Option<Box<str>> {
    let (end, reason) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    (end.parse() == Ok(until)).then(|| reason.into())
}

/// The name of the state of a member, and its key as it is shown.
fn read(member: &[u8]) -> Option<(Vec<u8>, KeyName)> {
    let (length, rest) = member.get(8..)?.split_first_chunk::<2>()?;
    let length = usize::from(u16::from_be_bytes(*length));
    let (state, short) = rest.split_at_checked(length)?;
    Some((state.to_vec(), KeyName::parse(short)?))
}

/// A mark that distinguishes keys with a common beginning.
fn mark(key: &[u8]) -> String {
    let digest = Sha256::digest(key);
    let first = digest.iter().take(8);
    first.map(|byte| format!("{byte:02x}")).collect()
}

/// A score of a list, which is a whole number below 2^53.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast saturates, and a foreign score is no ban's"
)]
fn whole(score: f64) -> u64 {
    score as u64
}

fn text(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

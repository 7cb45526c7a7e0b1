//! etcd as the configuration store.
//!
//! Calls go to one endpoint until one of them fails or times out, and then to the next one. A channel
//! over all endpoints would hide which of them is silent, and would go on asking it.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, Error, EventType, GetOptions, KeyValue, PutOptions,
    Txn, TxnOp, TxnResponse, WatchOptions, WatchStream,
};
use tokio::sync::watch;
use tokio::time::timeout;

use super::{
    Change, Committed, Condition, ConfigStore, EtcdOptions, Lease, Listing, StoreError,
    StoredEntry, Transaction, Watch, Write,
};

/// The most bytes of an answer: a listing has the record and a snapshot, each of several transactions.
const MAX_ANSWER: usize = 256 * 1_024 * 1_024;

/// Codes of gRPC.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const OUT_OF_RANGE: i32 = 11;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

impl EtcdOptions {
    fn connect(&self, within: Duration) -> ConnectOptions {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(within)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some((name, password)) = &self.user {
            options = options.with_user(name, password);
        }
        if let Some(tls) = &self.tls {
            let mut config = etcd_client::TlsOptions::new();
            config = match &tls.authority {
                Some(pem) => config.ca_certificate(etcd_client::Certificate::from_pem(pem)),
                None => config.with_native_roots(),
            };
            if let Some((certificate, key)) = &tls.identity {
                config = config.identity(etcd_client::Identity::from_pem(certificate, key));
            }
            options = options.with_tls(config);
        }
        options
    }
}

/// The longest time in which a connection is made and etcd's password check answers. It is more than the
/// deadline of a call: the check is slow by design, and on a busy etcd each call would begin a new one.
const MAX_CONNECT: Duration = Duration::from_secs(10);

/// A connection that is being made (`None`), or how that ended.
type Connecting = watch::Receiver<Option<Result<Client, StoreError>>>;

/// The endpoint in use, and the connection to each.
struct Connections {
    /// Rises with every change of the endpoint.
    turn: usize,
    to: Vec<Option<Connecting>>,
}

impl Connections {
    fn current(&mut self) -> &mut Option<Connecting> {
        let at = self.turn % self.to.len();
        &mut self.to[at]
    }
}

/// Returns true if a connection is being made.
fn is_pending(connecting: &Connecting) -> bool {
    // A task that was dropped with its runtime has closed it.
    connecting.has_changed().is_ok() && connecting.borrow().is_none()
}

/// etcd 3.4 or newer. Its connections belong to the runtime that makes the first call.
pub struct EtcdStore {
    endpoints: Vec<String>,
    options: EtcdOptions,
    connections: Mutex<Connections>,
}

impl std::fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdStore")
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

impl EtcdStore {
    /// A store at these URLs. Nothing is connected yet.
    ///
    /// # Errors
    /// [`StoreError::Refused`] if there is no endpoint, or one that is not an `http` or `https` URL.
    pub fn new(endpoints: Vec<String>, options: EtcdOptions) -> Result<Self, StoreError> {
        if endpoints.is_empty() {
            return Err(StoreError::Refused("no endpoint of etcd is given".into()));
        }
        for endpoint in &endpoints {
            if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
                return Err(StoreError::Refused(format!(
                    "`{endpoint}` is not a URL of etcd: write http://HOST:2379 or https://HOST:2379"
                )));
            }
        }
        let to = vec![None; endpoints.len()];
        Ok(Self {
            endpoints,
            options,
            connections: Mutex::new(Connections { turn: 0, to }),
        })
    }

    /// Its URLs, as they were given.
    pub(crate) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Carries out a transaction of etcd's own kind, for those who read by ranges.
    ///
    /// # Errors
    /// As of [`ConfigStore::commit`]; etcd itself refuses what is too large.
    pub(crate) async fn transact(
        &self,
        transaction: Txn,
        within: Duration,
    ) -> Result<TxnResponse, StoreError> {
        let call = |client: Client| async move {
            let mut kv = client.kv_client().max_decoding_message_size(MAX_ANSWER);
            kv.txn(transaction).await
        };
        self.call(within, call).await
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, Connections> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection to the endpoint in use, and that endpoint's turn. Calls share one, and it goes on
    /// being made when a call gives up on it.
    fn connecting(&self) -> (usize, Connecting) {
        let mut connections = self.connections();
        let turn = connections.turn;
        let current = connections.current();
        let connecting = match current.take() {
            Some(one) if is_pending(&one) || matches!(*one.borrow(), Some(Ok(_))) => one,
            _ => self.connect(turn),
        };
        *current = Some(connecting.clone());
        (turn, connecting)
    }

    /// Begins to connect to the endpoint of this turn.
    fn connect(&self, turn: usize) -> Connecting {
        let endpoint = self.endpoints[turn % self.endpoints.len()].clone();
        let options = self.options.connect(MAX_CONNECT);
        let (made, connecting) = watch::channel(None);
        tokio::spawn(async move {
            let client = timeout(MAX_CONNECT, Client::connect([endpoint], Some(options)));
            made.send_replace(Some(match client.await {
                Ok(Ok(client)) => Ok(client),
                Ok(Err(error)) => Err(store_error(&error)),
                Err(_) => Err(StoreError::Timeout(MAX_CONNECT)),
            }));
        });
        connecting
    }

    /// The next call goes to the next endpoint, unless another call has seen to that.
    fn give_up(&self, turn: usize) {
        let mut connections = self.connections();
        if connections.turn == turn {
            let current = connections.current();
            *current = current.take().filter(is_pending);
            connections.turn += 1;
        }
    }

    async fn call<T, F>(
        &self,
        within: Duration,
        call: impl FnOnce(Client) -> F + Send,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        let (turn, mut connecting) = self.connecting();
        let answer = timeout(within, async {
            let made = connecting.wait_for(Option::is_some).await;
            let made = made.ok().and_then(|made| made.clone());
            let client = made.unwrap_or_else(|| {
                Err(StoreError::Unreachable("nobody connects any more".into()))
            })?;
            call(client).await.map_err(|error| store_error(&error))
        });
        let error = match answer.await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => StoreError::Timeout(within),
        };
        if error.is_passing() {
            self.give_up(turn);
        }
        Err(error)
    }
}

impl ConfigStore for EtcdStore {
    type Watch = EtcdWatch;

    async fn read(&self, prefix: &str, within: Duration) -> Result<Listing, StoreError> {
        let options = GetOptions::new().with_prefix();
        let call = |client: Client| async move {
            let mut kv = client.kv_client().max_decoding_message_size(MAX_ANSWER);
            kv.get(prefix, Some(options)).await
        };
        let mut answer = self.call(within, call).await?;
        let revision = answer
            .header()
            .map_or(0, |header| number(header.revision()));
        let entries = answer.take_kvs().into_iter().map(entry);
        Ok(Listing {
            revision,
            entries: entries.collect::<Result<_, _>>()?,
        })
    }

    async fn watch(
        &self,
        prefix: &str,
        from: u64,
        within: Duration,
    ) -> Result<EtcdWatch, StoreError> {
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        let options = WatchOptions::new().with_prefix().with_start_revision(from);
        let call = |client: Client| async move {
            let watch = client.watch_client();
            let mut watch = watch.max_decoding_message_size(MAX_ANSWER);
            watch.watch(prefix, Some(options)).await
        };
        let stream = self.call(within, call).await?;
        Ok(EtcdWatch { stream })
    }

    async fn commit(
        &self,
        transaction: Transaction,
        within: Duration,
    ) -> Result<Committed, StoreError> {
        transaction.check_size()?;
        let conditions: Vec<Compare> = transaction.conditions.into_iter().map(compare).collect();
        let writes: Vec<TxnOp> = transaction.writes.into_iter().map(operation).collect();
        let txn = Txn::new().when(conditions).and_then(writes);
        let call = |mut client: Client| async move { client.txn(txn).await };
        let answer = self.call(within, call).await?;
        Ok(Committed {
            succeeded: answer.succeeded(),
            revision: answer
                .header()
                .map_or(0, |header| number(header.revision())),
        })
    }

    async fn grant(&self, ttl: Duration, within: Duration) -> Result<Lease, StoreError> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX).max(1);
        let call = |mut client: Client| async move { client.lease_grant(seconds, None).await };
        let answer = self.call(within, call).await?;
        Ok(Lease(answer.id()))
    }

    async fn keep_alive(&self, lease: Lease, within: Duration) -> Result<(), StoreError> {
        // One stream per keep-alive: there is nothing to mend when a connection breaks, and an answer
        // cannot be taken for that to another request.
        let call = |mut client: Client| async move { client.lease_keep_alive(lease.0).await };
        self.call(within, call).await.map(drop)
    }

    async fn revoke(&self, lease: Lease, within: Duration) -> Result<(), StoreError> {
        let call = |mut client: Client| async move { client.lease_revoke(lease.0).await };
        match self.call(within, call).await {
            Ok(_) | Err(StoreError::LeaseEnded) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A watch of etcd: a stream of its own.
#[derive(Debug)]
pub struct EtcdWatch {
    stream: WatchStream,
}

impl Watch for EtcdWatch {
    async fn next(&mut self) -> Result<Vec<Change>, StoreError> {
        let answer = self.stream.message().await.map_err(|e| store_error(&e))?;
        let Some(answer) = answer else {
            return Err(StoreError::WatchEnded("etcd closed the stream".into()));
        };
        if answer.compact_revision() > 0 {
            return Err(StoreError::WatchEnded(format!(
                "the changes before revision {} are compacted",
                answer.compact_revision()
            )));
        }
        if answer.canceled() {
            return Err(StoreError::WatchEnded(answer.cancel_reason().to_owned()));
        }
        let change = |event: &etcd_client::Event| {
            let is_put = event.event_type() == EventType::Put;
            let change = |kv: &KeyValue| {
                let (key, entry) = entry(kv.clone())?;
                let entry = is_put.then_some(entry);
                Ok(Change { key, entry })
            };
            event.kv().map(change)
        };
        // An empty one says that the watch was created, or is the sign of life that was asked for. The
        // revision of the latter is not used: in etcd 3.4 it may be ahead of the changes.
        answer.events().iter().filter_map(change).collect()
    }

    async fn request_progress(&mut self) -> Result<(), StoreError> {
        let asked = self.stream.request_progress().await;
        asked.map_err(|error| store_error(&error))
    }
}

fn number(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

fn entry(kv: KeyValue) -> Result<(String, StoredEntry), StoreError> {
    let (created, changed) = (number(kv.create_revision()), number(kv.mod_revision()));
    let lease = Some(Lease(kv.lease())).filter(|lease| lease.0 != 0);
    let (key, value) = kv.into_key_value();
    let key = String::from_utf8(key)
        .map_err(|_| StoreError::Refused("a key of the fleet in etcd is not UTF-8 text".into()))?;
    let entry = StoredEntry {
        value,
        created,
        changed,
        lease,
    };
    Ok((key, entry))
}

fn compare(condition: Condition) -> Compare {
    let signed = |revision: u64| i64::try_from(revision).unwrap_or(i64::MAX);
    let equal = CompareOp::Equal;
    match condition {
        Condition::Created { key, revision } => {
            Compare::create_revision(key, equal, signed(revision))
        }
        Condition::Changed { key, revision } => Compare::mod_revision(key, equal, signed(revision)),
        Condition::LeasedBy { key, lease } => Compare::lease(key, equal, lease.0),
    }
}

fn operation(write: Write) -> TxnOp {
    match write {
        Write::Put { key, value, lease } => {
            let options = lease.map(|lease| PutOptions::new().with_lease(lease.0));
            TxnOp::put(key, value, options)
        }
        Write::Delete { key } => TxnOp::delete(key, None),
    }
}

fn store_error(error: &Error) -> StoreError {
    let text = error.to_string();
    match error {
        Error::GRpcStatus(status) => {
            let text = status.message().to_owned();
            match i32::from(status.code()) {
                code::NOT_FOUND if text.contains("lease") => StoreError::LeaseEnded,
                code::OUT_OF_RANGE => StoreError::WatchEnded(text),
                code::INVALID_ARGUMENT
                | code::PERMISSION_DENIED
                | code::RESOURCE_EXHAUSTED
                | code::FAILED_PRECONDITION
                | code::UNAUTHENTICATED => StoreError::Refused(text),
                _ => StoreError::Unreachable(if text.is_empty() {
                    error.to_string()
                } else {
                    text
                }),
            }
        }
        Error::LeaseKeepAliveError(_) => StoreError::LeaseEnded,
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::EndpointError(_) => {
            StoreError::Refused(text)
        }
        _ => StoreError::Unreachable(text),
    }
}

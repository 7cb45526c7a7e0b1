//! Budget: the bytes that the streams of members may take together.
//!
//! A message is buffered until all of it has come, and its buffer stays with its stream. So a stream is charged for
//! the largest message that it announced, before a byte of that is buffered, until it ends. What does not fit ends the
//! stream; the member begins another one, here or at another coordinator.
//!
//! An answer is charged before it is made, until the connection has taken it: a member that reads nothing holds its
//! answers. What does not fit waits until other answers were read (`Unread`).
//!
//! One credential has at most half of what the others leave: who has one token cannot stop the nodes with another.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use prost::bytes::Bytes;
use quell_host::budget::{Budget as ByteBudget, BudgetShare, CallerBudget};
use tokio::sync::Notify;
use tonic::Status;
use tower_service::Service;

use crate::gate::{Credentials, Peer};

/// Charge of a stream before it says anything: its task, its queues, and messages up to this size.
const STREAM: usize = 8 * 1_024;

/// The head of a message of gRPC: whether it is compressed, and how long it is.
pub(crate) const HEAD: usize = 5;

/// The bytes that all streams may take.
#[derive(Debug)]
pub struct Budget {
    bytes: Arc<ByteBudget>,
    /// A draw that fails is undone, and nobody else is refused meanwhile: who waits is woken only when bytes come back.
    draws: Mutex<()>,
    /// Notified when bytes come back.
    back: Notify,
}

impl Budget {
    /// Unless an operator says otherwise: as servers have for their connections. With a token for each node it is
    /// enough for the most nodes that there may be.
    pub const MOST: usize = 256 << 20;

    /// A budget of so many bytes.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes: ByteBudget::new(most),
            draws: Mutex::default(),
            back: Notify::new(),
        })
    }

    /// Lets `share` have so many bytes. Returns whether there were enough.
    fn resize(&self, share: &mut BudgetShare, bytes: usize) -> bool {
        let is_back = bytes < share.held();
        let is_resized = {
            let _draw = self.draws.lock();
            share.resize(bytes)
        };
        // Nobody who waits is woken for nothing: a connection asks for each frame.
        if is_back {
            self.back.notify_waiters();
        }
        is_resized
    }
}

/// One stream's holding of answers that the other end has not read.
#[derive(Debug)]
pub(crate) struct Unread {
    budget: Arc<Budget>,
    share: Mutex<BudgetShare>,
}

impl Unread {
    fn new(budget: &Arc<Budget>, caller: &Arc<CallerBudget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            share: Mutex::new(caller.share_of_answers()),
        }
    }

    /// Waits for room for an answer of so many bytes, for as long as there is none. Cancelling this takes
    /// nothing.
    pub(crate) async fn make_room(&self, bytes: usize) {
        loop {
            let mut back = pin!(self.budget.back.notified());
            // Room freed from now on is heard of.
            back.as_mut().enable();
            if self.resize(|held| held + bytes) {
                return;
            }
            back.await;
        }
    }

    /// So much was read, or is not needed.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.resize(|held| held.saturating_sub(bytes));
    }

    fn resize(&self, change: impl FnOnce(usize) -> usize) -> bool {
        let mut share = self.share.lock();
        let bytes = change(share.held());
        self.budget.resize(&mut share, bytes)
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.resize(|_| 0);
    }
}

/// The body of a response, whose bytes are unread until the next are asked for.
#[derive(Debug)]
pub struct Answers<B> {
    body: B,
    unread: Arc<Unread>,
    /// Of the last frame: HTTP/2 asks for the next one when the window of the other end has taken it.
    taken: usize,
}

impl<B> Body for Answers<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        this.unread.give_back(std::mem::take(&mut this.taken));
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            this.taken = frame.data_ref().map_or(0, Bytes::len);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes that a stream took.
#[derive(Debug)]
struct Charge {
    budget: Arc<Budget>,
    share: BudgetShare,
}

impl Charge {
    /// That of a stream that begins; none if there is no room for it.
    fn begin(budget: &Arc<Budget>, caller: &Arc<CallerBudget>) -> Option<Self> {
        let mut charge = Self {
            budget: Arc::clone(budget),
            share: caller.share_of_answers(),
        };
        charge.make_room(STREAM).then_some(charge)
    }

    /// Makes room for a message. Returns whether there is some.
    fn make_room(&mut self, length: usize) -> bool {
        let bytes = length.max(self.share.held());
        self.budget.resize(&mut self.share, bytes)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.resize(&mut self.share, 0);
    }
}

/// Place of the next message in the bytes of a stream.
#[derive(Debug, Default)]
struct StreamPlace {
    head: [u8; HEAD],
    /// Bytes of a head that came.
    has: usize,
    /// Bytes of the message still to come.
    left: usize,
}

impl StreamPlace {
    /// Follows what has come; `begins` is asked about each message that begins, by its length. Returns whether all
    /// of them may.
    fn follow(&mut self, mut came: &[u8], mut begins: impl FnMut(usize) -> bool) -> bool {
        while !came.is_empty() {
            let (taken, rest) = came.split_at(came.len().min(match self.left {
                0 => HEAD - self.has,
                left => left,
            }));
            came = rest;
            if self.left > 0 {
                self.left -= taken.len();
                continue;
            }
            if let Some(head) = self.head.get_mut(self.has..self.has + taken.len()) {
                head.copy_from_slice(taken);
            }
            self.has += taken.len();
            if self.has == HEAD {
                let [_, length @ ..] = self.head;
                let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                (self.has, self.left) = (0, length);
                if !begins(length) {
                    return false;
                }
            }
        }
        true
    }
}

/// The body of a request whose messages are charged to a budget.
#[derive(Debug)]
pub struct Charged<B> {
    body: B,
    charge: Option<Charge>,
    place: StreamPlace,
}

impl<B> Body for Charged<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Some(charge) = &mut this.charge else {
            return Poll::Ready(Some(Err(no_room())));
        };
        let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(Status::from_error(error.into())))),
            Some(Ok(frame)) => frame,
        };
        let came = frame.data_ref().map(|data| &data[..]).unwrap_or_default();
        match this.place.follow(came, |length| charge.make_room(length)) {
            true => Poll::Ready(Some(Ok(frame))),
            false => Poll::Ready(Some(Err(no_room()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

pub(crate) fn no_room() -> Status {
    Status::resource_exhausted(
        "the coordinator has no memory left for messages of so many nodes with one token or certificate: give \
         each node its own, or start it with a larger --max-buffer-bytes",
    )
}

/// A service of gRPC whose requests are charged to a budget.
#[derive(Clone, Debug)]
pub struct Budgeted<S> {
    service: S,
    budget: Arc<Budget>,
}

impl<S> Budgeted<S> {
    pub(crate) const fn new(service: S, budget: Arc<Budget>) -> Self {
        Self { service, budget }
    }

    /// Budget of the sender of a request: by what it shows, or by its address if that is nothing.
    fn caller<B>(&self, request: &Request<B>) -> Arc<CallerBudget> {
        let peer = request.extensions().get::<Peer>();
        let credentials = Credentials::new(request.headers(), peer);
        let shown = credentials.shown();
        match (shown.token, shown.certificate) {
            (None, None) => self.budget.bytes.of_caller(&peer.and_then(Peer::ip)),
            shown => self.budget.bytes.of_caller(&shown),
        }
    }
}

impl<S, B, R> Service<Request<B>> for Budgeted<S>
where
    S: Service<Request<Charged<B>>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = Response<Answers<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let caller = self.caller(&request);
        let charge = Charge::begin(&self.budget, &caller);
        let unread = Arc::new(Unread::new(&self.budget, &caller));
        request.extensions_mut().insert(Arc::clone(&unread));
        let answer = self.service.call(request.map(|body| Charged {
            body,
            charge,
            place: StreamPlace::default(),
        }));
        Box::pin(async move {
            let answer = answer.await?;
            Ok(answer.map(|body| Answers {
                body,
                unread,
                taken: 0,
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_half_of_what_others_leave_and_gives_it_back() {
        let budget = Budget::new(100 * STREAM);
        let begin = |who: u8| Charge::begin(&budget, &budget.bytes.of_caller(&who));
        let of_one: Vec<Charge> = std::iter::from_fn(|| begin(1)).collect();
        assert_eq!(of_one.len(), 50);
        let of_another: Vec<Charge> = std::iter::from_fn(|| begin(2)).collect();
        assert_eq!(of_another.len(), 25);
        assert!(begin(3).is_some() && begin(1).is_none());
        drop(of_one);
        assert!(begin(2).is_some() && begin(1).is_some());
        drop(of_another);
        assert_eq!(budget.bytes.used(), 0);
    }

    #[test]
    fn a_stream_is_charged_for_its_largest_message() {
        let budget = Budget::new(8 * STREAM);
        let mut charge = Charge::begin(&budget, &budget.bytes.of_caller(&1)).unwrap();
        assert!(charge.make_room(10) && charge.make_room(STREAM));
        assert_eq!(budget.bytes.used(), STREAM);
        assert!(charge.make_room(3 * STREAM) && charge.make_room(2 * STREAM));
        assert_eq!(budget.bytes.used(), 3 * STREAM);
        assert!(!charge.make_room(5 * STREAM));
        assert_eq!(budget.bytes.used(), 3 * STREAM);
    }

    /// A body that has all of these, one after the other.
    struct Frames(Vec<usize>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            let next = self.0.pop();
            Poll::Ready(next.map(|length| Ok(Frame::data(vec![0; length].into()))))
        }
    }

    /// One that reads nothing holds no more than its part, whatever it is told.
    #[test]
    fn answers_are_charged_until_they_are_read() {
        let budget = Budget::new(100);
        let stream = |who: u8| Arc::new(Unread::new(&budget, &budget.bytes.of_caller(&who)));
        let mut context = Context::from_waker(std::task::Waker::noop());
        let (one, other, another) = (stream(1), stream(1), stream(2));
        let mut second = pin!(other.make_room(30));
        // Another one has its part.
        for (stream, bytes) in [(&one, 40), (&another, 30)] {
            let mut room = pin!(stream.make_room(bytes));
            assert!(room.as_mut().poll(&mut context).is_ready());
            assert!(second.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(budget.bytes.used(), 70);
        drop(another);

        let (body, taken) = (Frames(vec![15, 25]), 0);
        let unread = Arc::clone(&one);
        let mut answers = Answers {
            body,
            unread,
            taken,
        };
        for (length, left) in [(25, 40), (15, 15)] {
            let frame = Pin::new(&mut answers).poll_frame(&mut context);
            let Poll::Ready(Some(Ok(frame))) = frame else {
                panic!("{frame:?}");
            };
            assert_eq!(frame.into_data().unwrap().len(), length);
            assert_eq!(budget.bytes.used(), left);
        }
        assert!(second.as_mut().poll(&mut context).is_ready());
        assert_eq!(budget.bytes.used(), 45);
        // Answers unread when their stream ends are nobody's.
        drop((answers, one));
        assert_eq!(budget.bytes.used(), 30);
        other.give_back(100);
        assert_eq!(budget.bytes.used(), 0);
    }

    /// However the bytes are cut.
    #[test]
    fn messages_are_found_by_their_heads() {
        let message = |length: u32| {
            let body = std::iter::repeat_n(7, length as usize);
            let head = [&[0][..], &length.to_be_bytes()].concat();
            head.into_iter().chain(body).collect::<Vec<u8>>()
        };
        let bytes = [3, 0, 300, 1].map(message).concat();
        for size in 1..20 {
            let (mut place, mut begun) = (StreamPlace::default(), Vec::new());
            for came in bytes.chunks(size) {
                assert!(place.follow(came, |length| {
                    begun.push(length);
                    true
                }));
            }
            assert_eq!(begun, [3, 0, 300, 1], "{size}");
        }
        let mut place = StreamPlace::default();
        assert!(!place.follow(&bytes, |length| length < 300));
    }
}

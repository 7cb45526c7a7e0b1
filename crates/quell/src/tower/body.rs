//! Body: the service's, or that of a refusal.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::permit::Permit;

pin_project_lite::pin_project! {
    /// The body of a response: the service's own, or the few bytes of a refusal.
    #[derive(Debug)]
    pub struct LimitBody<B> {
        #[pin]
        served: Option<B>,
        refusal: Bytes,
        permit: Option<Permit>,
    }
}

impl<B> LimitBody<B> {
    /// The service's body, with a permit that is given back at its end.
    pub(super) const fn served(body: B, permit: Option<Permit>) -> Self {
        Self {
            served: Some(body),
            refusal: Bytes::new(),
            permit,
        }
    }

    pub(super) const fn refused(refusal: Bytes) -> Self {
        Self {
            served: None,
            refusal,
            permit: None,
        }
    }
}

impl<B: Body<Data = Bytes>> Body for LimitBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        if let Some(permit) = this.permit {
            permit.keep(context);
        }
        let Some(body) = this.served.as_pin_mut() else {
            let bytes = mem::take(this.refusal);
            return Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))));
        };
        let frame = body.poll_frame(context);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            *this.permit = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.served {
            Some(body) => body.is_end_stream(),
            None => self.refusal.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.served {
            Some(body) => body.size_hint(),
            None => {
                let length = u64::try_from(self.refusal.len());
                SizeHint::with_exact(length.unwrap_or(u64::MAX))
            }
        }
    }
}

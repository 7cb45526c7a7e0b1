//! Body: the service's, or that of a refusal.

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
        kind: Kind<B>,
        permit: Option<Permit>,
    }
}

pin_project_lite::pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Served { #[pin] body: B },
        Refused { bytes: Option<Bytes> },
    }
}

impl<B> LimitBody<B> {
    /// The service's body, with what is given back at its end.
    pub(super) const fn served(body: B, permit: Option<Permit>) -> Self {
        Self {
            kind: Kind::Served { body },
            permit,
        }
    }

    pub(super) fn refused(bytes: Bytes) -> Self {
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self {
            kind: Kind::Refused { bytes },
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
        match this.kind.project() {
            KindProjection::Served { body } => {
                let frame = body.poll_frame(context);
                if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
                    *this.permit = None;
                }
                frame
            }
            KindProjection::Refused { bytes } => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Served { body } => body.is_end_stream(),
            Kind::Refused { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Served { body } => body.size_hint(),
            Kind::Refused { bytes } => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
        }
    }
}

//! The caller's side of the proof exchange.

use super::wire::AuthMessage;
use super::{
    AuthError, Hello, Nonce, Resume, Secret, Service, Session, SessionId, is_equal, transcript,
};
use crate::conn::{Stream, StreamError};

/// A caller that proves itself and makes the listener prove itself. Call [`Calling::poll`] until it
/// returns a session or an error.
#[derive(Clone, Debug)]
pub struct Calling {
    secret: Secret,
    service: Service,
    /// The session to resume.
    session: Option<SessionId>,
    ours: Hello,
    message: AuthMessage,
    stage: CallStage,
}

#[derive(Clone, Copy, Debug)]
enum CallStage {
    SayHello,
    NameSession,
    AwaitHello,
    Prove(Hello),
    AwaitProof(Hello),
}

impl Calling {
    /// Creates a call to a listener that knows `secret`. The nonce must be random.
    pub fn new(secret: Secret, service: Service, nonce: Nonce) -> Self {
        let ours = Hello::new(service, nonce);
        let message = AuthMessage::out(ours.to_bytes());
        Calling { secret, service, session: None, ours, message, stage: CallStage::SayHello }
    }

    /// Creates a call to the listener that answers for the peer of a session. The nonce must be random.
    pub fn resuming(resume: &Resume, nonce: Nonce) -> Self {
        let calling = Self::new(resume.secret, Service::Resume, nonce);
        Calling { session: Some(resume.id), ..calling }
    }

    /// Goes on as far as possible without waiting, over a stream that is connected. After `None`, call
    /// again.
    ///
    /// # Errors
    /// The listener does not speak this exchange, or does not know the secret.
    pub fn poll(&mut self, stream: &mut impl Stream) -> Result<Option<Session>, AuthError> {
        loop {
            match self.stage {
                CallStage::SayHello => {
                    if !self.message.send(stream)? {
                        return Ok(None);
                    }
                    (self.stage, self.message) = match self.session {
                        Some(id) => (CallStage::NameSession, AuthMessage::out(id.0)),
                        None => (CallStage::AwaitHello, AuthMessage::EMPTY),
                    };
                }
                CallStage::NameSession => {
                    if !self.message.send(stream)? {
                        return Ok(None);
                    }
                    (self.stage, self.message) = (CallStage::AwaitHello, AuthMessage::EMPTY);
                }
                CallStage::AwaitHello => {
                    let theirs = self.message.recv_hello(stream).map_err(hung_up)?;
                    let Some(theirs) = theirs else { return Ok(None) };
                    theirs.check(self.service)?;
                    let proof = transcript(&self.secret, b"caller", &self.ours, &theirs);
                    (self.stage, self.message) =
                        (CallStage::Prove(theirs), AuthMessage::out(proof));
                }
                CallStage::Prove(theirs) => {
                    if !self.message.send(stream)? {
                        return Ok(None);
                    }
                    (self.stage, self.message) =
                        (CallStage::AwaitProof(theirs), AuthMessage::EMPTY);
                }
                CallStage::AwaitProof(theirs) => {
                    let proof = self.message.recv(stream).map_err(|error| hung_up(error.into()))?;
                    let Some(proof) = proof else { return Ok(None) };
                    let expected = transcript(&self.secret, b"listener", &self.ours, &theirs);
                    if !is_equal(&proof, &expected) {
                        return Err(AuthError::Secret);
                    }
                    return Ok(Some(Session::new(&self.secret, &self.ours, &theirs)));
                }
            }
        }
    }
}

/// Translates the end of the stream: a listener that closes the connection has refused this caller.
fn hung_up(error: AuthError) -> AuthError {
    const ECONNRESET: i32 = 104;
    match error {
        AuthError::Stream(StreamError::Closed | StreamError::Os(ECONNRESET)) => AuthError::HungUp,
        other => other,
    }
}

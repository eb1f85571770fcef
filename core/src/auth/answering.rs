//! The listener's side of the proof exchange.

use static_assertions::const_assert;

use super::wire::AuthMessage;
use super::{AuthError, Hello, Nonce, Secret, Service, Session, SessionId, is_equal, transcript};
use crate::conn::Stream;

/// A listener's state for one caller, until the caller has proved itself. Call [`Answering::poll`]
/// until it returns a session or an error, and then drop this object.
#[derive(Clone, Copy, Debug)]
pub struct Answering {
    nonce: Nonce,
    /// The session that the caller wants to resume.
    session: Option<SessionId>,
    message: AuthMessage,
    stage: AnswerStage,
}

// A stranger costs this much memory and its socket.
const_assert!(size_of::<Answering>() <= 128);

#[derive(Clone, Copy, Debug)]
enum AnswerStage {
    AwaitHello,
    AwaitName(Hello),
    SayUnknown,
    SayHello(Hello),
    AwaitProof(Hello),
    Prove(Hello),
}

impl Answering {
    /// Creates the state for a caller that has sent nothing yet. The nonce must be random.
    pub const fn new(nonce: Nonce) -> Self {
        Answering {
            nonce,
            session: None,
            message: AuthMessage::EMPTY,
            stage: AnswerStage::AwaitHello,
        }
    }

    /// Goes on as far as possible without waiting. After `None`, call again.
    ///
    /// # Errors
    /// The caller does not speak this exchange, or does not know the secret. A caller with another
    /// version or service has already received this end's version and service.
    pub fn poll(
        &mut self,
        secret: &Secret,
        service: Service,
        stream: &mut impl Stream,
    ) -> Result<Option<Session>, AuthError> {
        self.poll_with(|_| Some(*secret), service, stream)
    }

    /// Goes on as [`Answering::poll`] does, for a caller that resumes a session. `secret_of` gives the
    /// secret of a session that this end knows.
    ///
    /// # Errors
    /// [`AuthError::UnknownSession`], which the caller has been told, or an error of
    /// [`Answering::poll`].
    pub fn poll_resumed(
        &mut self,
        secret_of: impl Fn(&SessionId) -> Option<Secret>,
        stream: &mut impl Stream,
    ) -> Result<Option<SessionId>, AuthError> {
        let secret = |session: Option<&SessionId>| session.and_then(&secret_of);
        let proved = self.poll_with(secret, Service::Resume, stream)?;
        Ok(proved.and(self.session))
    }

    fn poll_with(
        &mut self,
        secret_of: impl Fn(Option<&SessionId>) -> Option<Secret>,
        service: Service,
        stream: &mut impl Stream,
    ) -> Result<Option<Session>, AuthError> {
        let ours = Hello::new(service, self.nonce);
        let secret_of = |session: &Option<SessionId>| {
            secret_of(session.as_ref()).ok_or(AuthError::UnknownSession)
        };
        loop {
            match self.stage {
                AnswerStage::AwaitHello => {
                    let Some(theirs) = self.message.recv_hello(stream)? else { return Ok(None) };
                    if service == Service::Resume && theirs.names_session() {
                        self.stage = AnswerStage::AwaitName(theirs);
                        self.message = AuthMessage::EMPTY;
                        continue;
                    }
                    self.stage = AnswerStage::SayHello(theirs);
                    self.message = AuthMessage::out(ours.to_bytes());
                }
                AnswerStage::AwaitName(theirs) => {
                    let Some(name) = self.message.recv(stream)? else { return Ok(None) };
                    self.session = Some(SessionId(name));
                    (self.stage, self.message) = match secret_of(&self.session) {
                        Ok(_) => (AnswerStage::SayHello(theirs), AuthMessage::out(ours.to_bytes())),
                        Err(_) => {
                            let unknown = Hello::of_unknown_session(self.nonce);
                            (AnswerStage::SayUnknown, AuthMessage::out(unknown.to_bytes()))
                        }
                    };
                }
                AnswerStage::SayUnknown => {
                    let is_said = self.message.send(stream)?;
                    return if is_said { Err(AuthError::UnknownSession) } else { Ok(None) };
                }
                AnswerStage::SayHello(theirs) => {
                    if !self.message.send(stream)? {
                        return Ok(None);
                    }
                    theirs.check(service)?;
                    (self.stage, self.message) =
                        (AnswerStage::AwaitProof(theirs), AuthMessage::EMPTY);
                }
                AnswerStage::AwaitProof(theirs) => {
                    let Some(proof) = self.message.recv(stream)? else { return Ok(None) };
                    let secret = secret_of(&self.session)?;
                    if !is_equal(&proof, &transcript(&secret, b"caller", &theirs, &ours)) {
                        return Err(AuthError::Secret);
                    }
                    let proof = transcript(&secret, b"listener", &theirs, &ours);
                    (self.stage, self.message) =
                        (AnswerStage::Prove(theirs), AuthMessage::out(proof));
                }
                AnswerStage::Prove(theirs) => {
                    if !self.message.send(stream)? {
                        return Ok(None);
                    }
                    let secret = secret_of(&self.session)?;
                    return Ok(Some(Session::new(&secret, &theirs, &ours)));
                }
            }
        }
    }
}

"""How flat a trained network's loss is, how easily the network is fooled, and how it copes with noise."""

from lipschitz_rnn.robustness.attacks.methods import deepfool as deepfool
from lipschitz_rnn.robustness.attacks.methods import fgsm as fgsm
from lipschitz_rnn.robustness.attacks.methods import pgd as pgd
from lipschitz_rnn.robustness.attacks.result import AttackResult as AttackResult
from lipschitz_rnn.robustness.density import Density as Density
from lipschitz_rnn.robustness.hessian_spectrum import HessianResult as HessianResult
from lipschitz_rnn.robustness.hessian_spectrum import hessian as hessian
from lipschitz_rnn.robustness.noise import NoiseCurve as NoiseCurve
from lipschitz_rnn.robustness.noise import noise_curve as noise_curve
from lipschitz_rnn.robustness.noise import salt_and_pepper as salt_and_pepper
from lipschitz_rnn.robustness.noise import white_noise as white_noise
from lipschitz_rnn.robustness.samples import draw_samples as draw_samples
from lipschitz_rnn.robustness.samples import valid_range as valid_range

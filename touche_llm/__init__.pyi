# The public interface: `touche_llm.__init__` imports these names at first use.

from .api.dataset import Dataset as Dataset
from .api.evaluate import evaluate as evaluate
from .api.language_model import LanguageModel as LanguageModel
from .api.library import DenseOptions as DenseOptions
from .api.library import RankOptions as RankOptions
from .api.library import judge as judge
from .api.library import open_corpus as open_corpus
from .api.library import rank as rank
from .api.library import retrieve as retrieve
from .api.progress import ConsoleProgress as ConsoleProgress
from .api.progress import SilentProgress as SilentProgress
from .api.rank import Ranking as Ranking
from .data.records import Topic as Topic
from .data.topics.reading import read_topics as read_topics
from .engines.answer_function import FunctionAnswer as FunctionAnswer
from .engines.settings import EngineConfig as EngineConfig
from .errors import DataError as DataError
from .errors import EngineError as EngineError
from .errors import PromptError as PromptError
from .errors import ReplayMiss as ReplayMiss
from .errors import ToucheError as ToucheError
from .errors import ToucheWarning as ToucheWarning
from .errors import UsageError as UsageError
from .evaluation.qrels import read_qrels as read_qrels
from .judging.result import Judgments as Judgments
from .judging.stance_labels import StanceSettings as StanceSettings
from .kinds.pairs.settings import PairSettings as PairSettings
from .llm.settings import SamplingConfig as SamplingConfig
from .ranking.steps import RankingSettings as RankingSettings
from .retrieval.candidates import Candidates as Candidates
from .retrieval.chatnoir import ChatNoirSettings as ChatNoirSettings
from .retrieval.elasticsearch import ElasticsearchSettings as ElasticsearchSettings
from .retrieval.first_stages import RetrieverConfig as RetrieverConfig
from .runs.judge_qrels import fill_unjudged as fill_unjudged
from .runs.judges import agree as agree
from .runs.overview import read_run as read_run
from .tasks import get_task as get_task

__version__: str
__all__: list[str]
